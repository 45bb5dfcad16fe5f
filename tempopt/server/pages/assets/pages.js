"use strict";
// What pages have in common: parts of them that are kept up to date, and words for those who listen.
const pages = (() => {
  const said = document.getElementById("said");
  const say = (text) => { said.textContent = text; };

  // Fetch a part of a page; null: it is as it was.
  const fetchPart = async (url, tag) => {
    const answer = await fetch(url, { headers: tag ? { "If-None-Match": tag } : {}, credentials: "same-origin" });
    if (answer.status === 304) return null;
    if (answer.status === 401) throw new SignedOut();
    if (answer.status === 404) throw new Gone();
    if (!answer.ok) throw new Error(`${answer.status}`);
    return { text: await answer.text(), tag: answer.headers.get("ETag") };
  };
  class SignedOut extends Error {}
  class Gone extends Error {}

  // Nothing more is asked once nobody would answer.
  let over = false;

  // A link or a button of the same name keeps the focus, and a box stays where it was scrolled to.
  const focusKey = (element) =>
    element && (element.id ? `#${CSS.escape(element.id)}` :
      element.getAttribute("href") ? `${element.localName}[href="${CSS.escape(element.getAttribute("href"))}"]` : null);

  const replace = (element, html) => {
    const inside = element.contains(document.activeElement) ? focusKey(document.activeElement) : null;
    const open = [...element.querySelectorAll("details[id][open]")].map((each) => each.id);
    const places = [...element.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
    element.innerHTML = html;
    element.querySelectorAll(".scroll").forEach((each, i) => places[i] && each.scrollTo(...places[i]));
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (inside) element.querySelector(inside)?.focus({ preventScroll: true });
    element.dispatchEvent(new CustomEvent("replaced", { bubbles: true }));
  };

  // Keeps an element up to date from element.dataset.live, every so many seconds, or whenever it is told to.
  // A part that takes the server long is asked for the less often: a fifth of the time at most.
  const live = (element) => {
    let tag = null;
    let timer = null;
    let busy = false;
    let again = false;
    let failures = 0;
    let notBefore = 0;
    let url = null;
    const every = 1000 * Number(element.dataset.every || 0);
    const look = async () => {
      clearTimeout(timer);
      if (over) return;
      if (busy) { again = true; return; }
      const began = performance.now();
      if (began < notBefore && url === element.dataset.live) {
        timer = setTimeout(look, notBefore - began);
        return;
      }
      busy = true;
      url = element.dataset.live;
      try {
        const part = await fetchPart(url, tag);
        failures = 0;
        offline(false);
        if (part && url === element.dataset.live) {
          tag = part.tag;
          replace(element, part.text);
        }
      } catch (error) {
        if (over) return;
        if (error instanceof SignedOut) { signedOut(); return; }
        if (error instanceof Gone) { gone("What this page shows was deleted."); return; }
        failures += 1;
        if (failures > 1) offline(true);
      } finally {
        busy = false;
        notBefore = performance.now() + 4 * (performance.now() - began);
      }
      if (again) { again = false; look(); return; }
      if (every && !document.hidden) timer = setTimeout(look, every * Math.min(1 + failures, 8));
    };
    document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
    if (every) timer = setTimeout(look, every);
    return { look, forget: () => { tag = null; } };
  };

  const band = (text) => {
    let found = document.getElementById("band");
    if (!found) {
      found = document.createElement("p");
      found.id = "band";
      found.className = "notice warn band";
      found.setAttribute("role", "status");
      document.getElementById("main").prepend(found);
    }
    found.hidden = !text;
    if (text && found.dataset.text !== text) {
      found.textContent = text;
      found.dataset.text = text;
    }
    return found;
  };
  const offline = (is) => {
    if (is) band("The server does not answer. What is shown is as it was last.");
    else if (document.getElementById("band")) band("");
  };
  const signedOut = () => {
    over = true;
    const link = document.createElement("a");
    link.href = `/sign-in?then=${encodeURIComponent(location.pathname + location.search)}`;
    link.textContent = "Sign in";
    band("You are signed out.").append(" ", link);
  };

  const gone = (text) => { over = true; band(text); };

  return { fetchPart, gone, live, replace, say, SignedOut, signedOut };
})();
