"use strict";
// Plots of a page: fetched when they come into view, fetched again when there is news, drawn on the ground that it has.
const plots = (() => {
  const figures = [...document.querySelectorAll("[data-plot]")];
  const known = new Map();
  const absents = document.getElementById("absents");

  const tellAbsents = () => {
    if (!absents) return;
    const missing = figures.filter((each) => known.get(each)?.absent);
    absents.hidden = !missing.length;
    absents.querySelector("[data-absents]").textContent =
      `${missing.length} plot${missing.length === 1 ? "" : "s"} with nothing to show yet`;
    absents.querySelector("ul").replaceChildren(...missing.map((each) => {
      const line = document.createElement("li");
      line.textContent = `${each.querySelector("h3").textContent}: ${known.get(each).absent}`;
      return line;
    }));
  };

  const draw = (figure) => {
    const found = known.get(figure);
    const caption = figure.querySelector("figcaption");
    if (absents) figure.hidden = Boolean(found.absent);
    caption.textContent = found.absent ?? found.caption;
    figure.querySelector(".plot").hidden = Boolean(found.absent);
    if (found.absent) return;
    const title = figure.querySelector("h3")?.textContent;
    figure.querySelector(".plot").setAttribute("aria-label", title ? `${title}. ${found.caption}` : found.caption);
    drawing.draw(figure.querySelector(".plot"), found.figure);
    figure.dataset.drawn = "yes";
  };

  const look = async (figure) => {
    const before = known.get(figure);
    try {
      const part = await pages.fetchPart(figure.dataset.plot, before?.tag);
      if (!part) return;
      known.set(figure, { ...JSON.parse(part.text), tag: part.tag });
    } catch (error) {
      if (error instanceof pages.SignedOut) pages.signedOut();
      else if (!before) figure.querySelector("figcaption").textContent = "This plot could not be fetched.";
      return;
    }
    draw(figure);
    tellAbsents();
  };

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !known.has(entry.target) && !entry.target.dataset.asked) {
        entry.target.dataset.asked = "yes";
        look(entry.target);
      }
    }
  }, { rootMargin: "400px" });
  for (const figure of figures) seen.observe(figure);

  drawing.dark.addEventListener("change", () => {
    for (const [figure, found] of known) if (!found.absent) draw(figure);
  });

  // One after the other: the server draws two at a time, for everybody.
  const again = async () => {
    for (const figure of [...known.keys()]) await look(figure);
  };
  return { again };
})();
