"use strict";
(() => {
  const element = document.querySelector("[data-live]");
  const form = document.querySelector("[data-filters]");
  const list = pages.live(element);
  form.querySelector("button").hidden = true;

  // What is typed filters at once; the address says it, so that a link and "back" lead here.
  const filter = () => {
    const fields = [...new FormData(form)].filter(([, value]) => value);
    const query = new URLSearchParams(fields).toString();
    history.replaceState(null, "", query ? `/?${query}` : "/");
    element.dataset.live = `/fragments/studies?${query}`;
    list.forget();
    asked = true;
    list.look();
  };
  let asked = false;
  let timer = null;
  form.addEventListener("input", (event) => {
    clearTimeout(timer);
    timer = setTimeout(filter, event.target.localName === "input" ? 200 : 0);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    filter();
  });
  element.addEventListener("replaced", () => {
    document.getElementById("counts").textContent = document.getElementById("counts-now").textContent;
    if (!asked) return;
    asked = false;
    const found = element.querySelector("[data-found]")?.dataset.found ?? "0";
    pages.say(`${found} ${found === "1" ? "study" : "studies"} found`);
  });
})();
