"use strict";
(() => {
  const standing = document.getElementById("standing");
  const runs = document.getElementById("runs");
  const top = pages.live(standing);
  const table = pages.live(runs);
  const PARTS = 2000;
  const PLOTS = 15000;

  // At most once in a while, and never left out: what comes meanwhile is one more look at the end.
  const seldom = (work, every) => {
    let timer = null;
    let last = 0;
    return () => {
      if (timer || document.hidden) return;
      timer = setTimeout(() => { timer = null; last = Date.now(); work(); }, Math.max(0, last + every - Date.now()));
    };
  };
  const parts = seldom(() => { top.look(); table.look(); }, PARTS);
  const drawn = seldom(() => plots.again(), PLOTS);

  let state = standing.dataset.state;
  standing.addEventListener("replaced", () => {
    const now = standing.querySelector("[data-state]")?.dataset.state;
    if (now && now !== state) pages.say(`The study is ${now}.`);
    state = now ?? state;
  });

  // Browsers open few lines to one server: a page that is not looked at keeps none.
  let source = null;
  let deleted = false;
  const close = () => {
    source?.close();
    source = null;
  };
  const listen = () => {
    if (source || deleted || document.hidden) return;
    source = new EventSource(standing.dataset.events);
    source.addEventListener("ticket", () => { parts(); drawn(); });
    source.addEventListener("counts", parts);
    source.addEventListener("state", (event) => {
      deleted = JSON.parse(event.data).state === "deleted";
      if (deleted) {
        close();
        pages.gone("The study was deleted.");
        return;
      }
      parts();
      drawn();
    });
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      return;
    }
    listen();
    parts();
    drawn();
  });
  listen();

  const filter = document.querySelector("[data-runs-filter]");
  filter.querySelector("button").hidden = true;
  filter.addEventListener("input", () => {
    const query = new URLSearchParams([...new FormData(filter)].filter(([, value]) => value)).toString();
    history.replaceState(null, "", query ? `?${query}` : location.pathname);
    runs.dataset.live = `${runs.dataset.live.split("?")[0]}?${query}`;
    table.forget();
    table.look();
  });

  // The button is there once the name is typed.
  const form = document.querySelector("[data-delete]");
  if (form) {
    const button = form.querySelector("button");
    const typed = form.querySelector("#confirm");
    const check = () => { button.disabled = typed.value.trim() !== form.dataset.delete; };
    typed.addEventListener("input", check);
    check();
  }
})();
