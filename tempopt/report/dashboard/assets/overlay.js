"use strict";
// Shows state and verdict in Optuna's list of studies and at the top of a study's page. What React draws stays
// as it is: elements of our own are added beside it, and added again when React has drawn anew.
(() => {
  const PAUSE = 20000;
  const STUDIES = new URL("../tempopt/studies", document.currentScript.src);
  const STUDY = /^\/dashboard\/studies\/(\d+)\/?$/;
  let studies = new Map();

  const made = (tag, kind, text) => {
    const element = document.createElement(tag);
    element.className = kind;
    element.textContent = text;
    return element;
  };
  const isGain = (study) => study.answer === "Gain shown";
  const standing = (study) => (study.state === "done" || !study.runs ? study.state : `${study.state}, ${study.runs}`);

  const panel = (study) => {
    const lead = made("section", "tempopt-lead", "");
    lead.setAttribute("aria-label", "Verdict");
    lead.toggleAttribute("data-tempopt-gain", isGain(study));
    lead.append(made("p", "tempopt-word", study.answer ?? "No verdict yet"));
    if (study.verdict) lead.append(made("p", "tempopt-verdict", study.verdict));
    if (study.todo) {
      const todo = made("p", "tempopt-todo", "");
      todo.append(made("b", "", "What to do: "), study.todo.replaceAll("`", ""));
      lead.append(todo);
    }
    const more = made("p", "tempopt-quiet", `Study ${standing(study)}. The tab Note has the whole verdict.`);
    if (study.page) {
      // only where a server has pages of its own beside this one
      const link = made("a", "", "Its page in tempopt");
      link.href = study.page;
      more.append(" ", link);
    }
    lead.append(more);
    return lead;
  };

  const line = (study) => {
    const said = made("div", "tempopt-line", `${standing(study)} · `);
    said.toggleAttribute("data-tempopt-gain", isGain(study));
    said.append(made("b", "", study.answer ?? "No verdict yet"), study.in_short ? `: ${study.in_short}` : "");
    return said;
  };

  // Has an element before another, unless the same is there already: whatever is written here calls us again.
  const keep = (parent, kind, wanted, before) => {
    const there = parent.querySelector(`:scope > .${kind}`);
    if (there && wanted && there.isEqualNode(wanted) && there.nextElementSibling === before) return;
    there?.remove();
    if (wanted) parent.insertBefore(wanted, before);
  };

  const update = () => {
    const ground = getComputedStyle(document.body).backgroundColor.match(/[\d.]+/g).map(Number);
    const [red, green, blue, opacity = 1] = ground;
    const scheme = opacity > 0 && red + green + blue < 384 ? "dark" : "light";
    if (document.documentElement.dataset.tempopt !== scheme) document.documentElement.dataset.tempopt = scheme;
    const main = document.querySelector("main") ?? document.body;
    const study = studies.get(Number(location.pathname.match(STUDY)?.[1]));
    // its first element only leaves room for the bar at the top
    const content = [...main.children].find((each) => !each.matches(".tempopt-lead") && each.childElementCount);
    keep(main, "tempopt-lead", study && content && panel(study), content);
    for (const link of document.querySelectorAll('.MuiCard-root > a[href*="/dashboard/studies/"]')) {
      const listed = studies.get(Number(new URL(link.href).pathname.match(STUDY)?.[1]));
      keep(link, "tempopt-line", listed && line(listed), null);
    }
    for (const title of document.querySelectorAll(".MuiCardContent-root > h6")) {
      const best = title.textContent.startsWith("Best Trial");
      if (title.parentElement.classList.contains("tempopt-best") !== best) {
        title.parentElement.classList.toggle("tempopt-best", best);
      }
    }
  };

  let asked = false;
  const soon = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      update();
    });
  };

  const ask = async () => {
    try {
      const answer = await fetch(STUDIES);
      if (answer.ok) studies = new Map((await answer.json()).map((each) => [each.id, each]));
    } catch {
      // the server is away for a moment: what was known stays
    }
    soon();
    setTimeout(ask, PAUSE);
  };

  new MutationObserver(soon).observe(document.body, {
    attributes: true, attributeFilter: ["class"], childList: true, subtree: true,
  });
  soon();
  ask();
})();
