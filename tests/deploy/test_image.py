"""What the image of the server has: what a server imports, no torch, and nothing that a server lacks."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from pathlib import Path

import httpx
import pytest

from tests.deploy import requirements

ROOT = requirements.ROOT


@pytest.mark.static
def test_the_requirements_of_a_server_are_what_it_imports() -> None:
    text = requirements.FILE.read_text(encoding="utf-8")
    assert text == requirements.file_text()
    names = set(re.findall(r"^([\w-]+)==", text, re.M))
    assert {"fastapi", "sqlalchemy", "psycopg-binary", "s3fs"} <= names
    assert not names & {"torch", "lightning", "torchmetrics", "pytorch-lightning", "scikit-learn"}


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.agent"])
def test_an_image_copies_existing_files_and_runs_as_an_unprivileged_user(name: str) -> None:
    lines = (ROOT / "deploy" / name).read_text(encoding="utf-8").splitlines()
    sources = [word for line in lines if re.match(r"COPY (?!--from)", line) for word in line.split()[1:-1]]
    assert "tempopt" in sources and all((ROOT / source).exists() for source in sources)
    last = [line for line in lines if line.startswith("USER")][-1]
    assert last == "USER 10001:10001"
    assert lines.index(last) < lines.index('ENTRYPOINT ["tempopt"]')


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_server_runs_with_these_requirements_alone(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    for install_args in (["-r", str(requirements.FILE)], [str(ROOT)]):
        words = [programs / "pip", "install", "--quiet", "--no-compile", "--no-deps", *install_args]
        process = subprocess.run(words, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
    serve_and_ask(programs, tmp_path)


def serve_and_ask(programs: Path, folder: Path) -> None:
    """Have an installed server answer: its readiness, a study's checks, its pages."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPOPT", "PYTHON"))}
    environment |= {"HOME": str(folder), "PATH": f"{programs}:/usr/bin:/bin"}
    process = subprocess.run(
        [programs / "python", "-c", "import importlib.util as u; print(u.find_spec('torch'))"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=True,
    )
    assert process.stdout == "None\n"
    words = [programs / "tempopt", "serve", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()
            token = server.stdout.readline().strip()
            url = server.stdout.readline().split()[-1]
            with httpx.Client(base_url=url, timeout=300.0) as client:
                assert client.get("/readyz").json() == {"status": "ready"}
                client.headers["authorization"] = f"Bearer {token}"
                for path in ("/metrics", "/openapi.json", "/api/studies", "/"):
                    assert client.get(path, follow_redirects=True).status_code == 200, path
        finally:
            server.terminate()
        assert server.wait(120) == 0
