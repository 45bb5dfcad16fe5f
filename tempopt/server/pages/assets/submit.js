"use strict";
// Checks the spec while it is typed: marks its lines, shows what was found, and leads to the first fault.
(() => {
  const PAUSE = 700;
  const form = document.getElementById("submit");
  const text = document.getElementById("text");
  const behind = document.getElementById("behind");
  const findings = document.getElementById("findings");
  const said = document.getElementById("said");
  let timer = null;
  let asked = null;
  let shown = null;

  const made = (kind, words) => {
    const element = document.createElement(kind === "line" ? "div" : "span");
    element.className = kind;
    if (words !== undefined) element.textContent = words;
    return element;
  };

  const messages = () => [...findings.querySelectorAll(".messages li")];

  // What is said of each line: the first message, an error before a warning.
  const notes = () => {
    const found = new Map();
    for (const each of messages()) {
      const line = Number(each.dataset.line);
      const before = found.get(line);
      if (line && (!before || (before.severity === "warning" && each.dataset.severity === "error"))) {
        found.set(line, { severity: each.dataset.severity, text: each.querySelector(".text").textContent });
      }
    }
    return found;
  };

  // The lines behind the text: their numbers and, as long as the text is what was checked, their marks.
  const draw = () => {
    const marks = shown === text.value ? notes() : new Map();
    const lines = text.value.split("\n");
    behind.replaceChildren(...lines.map((words, place) => {
      const line = made("line");
      line.append(made("ghost", words));
      const mark = marks.get(place + 1);
      if (mark) {
        line.classList.add(mark.severity);
        line.append(made("note", mark.text));
      }
      return line;
    }));
    text.rows = Math.max(18, lines.length + 1);
    follow();
  };

  const follow = () => {
    behind.scrollLeft = text.scrollLeft;
    behind.style.setProperty("--scrolled", `${behind.scrollLeft}px`);
  };

  const goTo = (line, column) => {
    const lines = text.value.split("\n");
    const start = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
    text.focus({ preventScroll: true });
    text.setSelectionRange(start + Math.max(0, column - 1), start + (lines[line - 1] ?? "").length);
    text.scrollLeft = 0;
    behind.children[line - 1]?.scrollIntoView({ block: "center", inline: "nearest" });
    follow();
  };

  const toFirst = () => {
    const first = messages().find((each) => each.dataset.severity === "error");
    if (first?.dataset.line) goTo(Number(first.dataset.line), Number(first.dataset.column));
    else findings.focus();
  };

  const refused = async (answer) => {
    let words = `The server answered ${answer.status}.`;
    try {
      words = (await answer.json()).error.message;
    } catch {
      // no answer of ours, as of a proxy
    }
    return words;
  };

  // Returns whether the text that was asked about is still the one that is shown.
  const check = async () => {
    clearTimeout(timer);
    asked?.abort();
    const mine = new AbortController();
    asked = mine;
    const value = text.value;
    findings.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch("/submit/check", {
        method: "POST", body: new URLSearchParams(new FormData(form)), headers: { "x-part": "findings" },
        credentials: "same-origin", signal: mine.signal,
      });
      const body = answer.ok ? await answer.text() : await refused(answer);
      if (asked !== mine) return false;
      if (!answer.ok) {
        said.textContent = body;
        const words = findings.querySelector(".count") ?? findings.querySelector("p");
        words.className = "count fault";
        words.textContent = body;
        return false;
      }
      findings.innerHTML = body;
      shown = value;
      text.toggleAttribute("aria-invalid", false);
      if (messages().some((each) => each.dataset.severity === "error")) text.setAttribute("aria-invalid", "true");
      said.textContent = findings.querySelector(".count")?.textContent ?? "";
      draw();
      return true;
    } catch (error) {
      if (error.name !== "AbortError") said.textContent = "The server cannot be reached.";
      return false;
    } finally {
      if (asked === mine) findings.removeAttribute("aria-busy");
    }
  };

  form.addEventListener("input", () => {
    draw();
    clearTimeout(timer);
    timer = setTimeout(check, PAUSE);
  });
  text.addEventListener("scroll", follow);
  form.addEventListener("submit", (event) => {
    if (event.submitter?.id !== "check") return;
    event.preventDefault();
    check().then((done) => done && toFirst());
  });
  findings.addEventListener("click", (event) => {
    const message = event.target.closest("a")?.closest("li[data-line]");
    if (!message) return;
    event.preventDefault();
    goTo(Number(message.dataset.line), Number(message.dataset.column));
  });

  shown = messages().length ? text.value : null;
  draw();
  if (messages().length) toFirst();
  else if (text.value.trim()) check();
})();
