"""Machines to be cut off from each other: network namespaces, each joined to this machine by a veth pair.

Needs Linux, root and iproute2. Names and addresses follow from the process id, so that runs side by side do
not meet.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import ipaddress
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

# Set aside for the testing of networks (RFC 2544): 2**13 networks of 16 addresses.
_RANGE = ipaddress.ip_network("198.18.0.0/15")
_PER_NETWORK = 16
_COUNT = itertools.count()
_REVERSE = "/proc/sys/net/ipv4/conf/{}/rp_filter"
_OPEN_TABLE = "100"


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=check)


class Machine:
    """One namespace; what is started with its prefix reaches nothing but this machine's one address."""

    def __init__(self, name: str, address: str, server: str) -> None:
        self.name = name
        self.server = server
        # the names of network devices end at 15 letters
        self._outside, self._inside = f"{name}o", f"{name}i"
        _ip("netns", "add", name)
        _ip("link", "add", self._outside, "type", "veth", "peer", "name", self._inside, "netns", name)
        _ip("address", "add", server, "peer", address, "dev", self._outside)
        _ip("link", "set", self._outside, "up")
        _ip("-n", name, "address", "add", address, "peer", server, "dev", self._inside)
        _ip("-n", name, "link", "set", self._inside, "up")
        _ip("-n", name, "link", "set", "lo", "up")

    @property
    def prefix(self) -> list[str]:
        """Words before a command that is to run on this machine."""
        return ["ip", "netns", "exec", self.name]

    @property
    def whole_prefix(self) -> list[str]:
        """As :attr:`prefix`, with process ids and a host name of its own: it dies with all it runs."""
        unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
        return [*self.prefix, *unshare, "sh", "-c", 'hostname "$0" && exec "$@"', self.name]

    def reach_only(self, *ports: int) -> None:
        """Have it reach nothing but these TCP ports of this machine's address, as behind a firewall."""
        namespace_args = ["-n", self.name]
        # the way back is looked up without a port
        _ip("netns", "exec", self.name, "sh", "-c", f"echo 0 > {_REVERSE.format('all')}")
        _ip("netns", "exec", self.name, "sh", "-c", f"echo 0 > {_REVERSE.format(self._inside)}")
        _ip(*namespace_args, "route", "add", self.server, "dev", self._inside, "table", _OPEN_TABLE)
        for port in ports:
            rule = ["to", self.server, "ipproto", "tcp", "dport", str(port)]
            _ip(*namespace_args, "rule", "add", *rule, "lookup", _OPEN_TABLE)
        _ip(*namespace_args, "route", "replace", "unreachable", self.server)

    def cut(self) -> None:
        """Pull the cable: packets vanish, without notice."""
        _ip("link", "set", self._outside, "down")

    def join(self) -> None:
        """Plug the cable in again."""
        _ip("link", "set", self._outside, "up")

    def remove(self) -> None:
        """Take the machine away."""
        _ip("link", "delete", self._outside, check=False)
        _ip("netns", "delete", self.name, check=False)


class Network:
    """An address on this machine, at which servers listen, and the machines that reach it."""

    def __init__(self) -> None:
        self._number = (os.getpid() + 1009 * next(_COUNT)) % (_RANGE.num_addresses // _PER_NETWORK)
        self.address = self._address(1)
        self._machines: list[Machine] = []
        _ip("address", "add", f"{self.address}/32", "dev", "lo")

    def _address(self, host: int) -> str:
        return str(_RANGE[_PER_NETWORK * self._number + host])

    def machine(self) -> Machine:
        """Return a new machine, at most 14."""
        count = len(self._machines)
        machine = Machine(f"to{self._number}x{count}", self._address(2 + count), self.address)
        self._machines.append(machine)
        return machine

    def remove(self) -> None:
        """Take everything away."""
        atexit.unregister(self.remove)
        for machine in self._machines:
            machine.remove()
        _ip("address", "delete", f"{self.address}/32", "dev", "lo", check=False)


@functools.cache
def why_not() -> str:
    """Return why no machines can be made here, and how to get them; empty if they can."""
    programs = ("ip", "unshare", "sh")
    if not sys.platform.startswith("linux"):
        reason = "this is not Linux"
    elif os.geteuid() != 0:
        reason = "network namespaces need root"
    elif missing := [program for program in programs if shutil.which(program) is None]:
        reason = f"{', '.join(missing)} is not installed (on Debian: apt-get install iproute2 util-linux)"
    else:
        try:
            with make_network() as network:
                network.machine()
            return ""
        except subprocess.CalledProcessError as error:
            reason = f"ip says: {error.stderr.strip()}"
    return f"NOT TESTED on a cut network and on two machines: {reason}. Run the tests as root on Linux."


@contextlib.contextmanager
def make_network() -> Iterator[Network]:
    """Make a network and take it away again."""
    network = Network()
    atexit.register(network.remove)
    try:
        yield network
    finally:
        network.remove()
