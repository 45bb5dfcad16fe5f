"use strict";
(() => {
  const DARK = DARK_COLOURS;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll("[data-plot]")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paper = matchMedia("print");
  const PAPER_WIDTH = 660;

  // A copy, in the colours of the ground that it will stand on.
  const coloured = (value, isDark) => {
    if (typeof value === "string") return isDark ? DARK[value] ?? value : value;
    if (Array.isArray(value)) return value.map((each) => coloured(each, isDark));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, coloured(each, isDark)]));
  };

  const draw = (element, onPaper) => {
    const figure = coloured(figures[element.dataset.plot], dark.matches && !onPaper);
    const layout = figure.layout;
    // A finger that scrolls the page must not zoom a plot.
    layout.dragmode = matchMedia("(pointer: fine)").matches ? "zoom" : false;
    if (onPaper) layout.width = PAPER_WIDTH;
    else if (element.clientWidth < 520) narrow(figure);
    return Plotly.react(element, figure.data, layout, { displayModeBar: false, responsive: !onPaper });
  };

  // Where there is little width, a scale of colours lies below the plot instead of beside it.
  const narrow = (figure) => {
    const layout = figure.layout;
    const bars = [layout.coloraxis, ...figure.data, ...figure.data.map((trace) => trace.marker)];
    for (const bar of bars.map((each) => each && each.colorbar).filter(Boolean)) {
      Object.assign(bar, { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0.5, len: 1 });
      Object.assign(bar, { thickness: 10, tickangle: 0, title: { ...bar.title, side: "bottom" } });
      layout.height += 70;
      layout.margin = { ...layout.margin, b: 115 };
    }
    layout.font = { ...layout.font, size: 12 };
  };

  const drawAll = (onPaper) => {
    for (const element of plots) draw(element, onPaper);
  };

  const drawNext = (waiting) => {
    if (!waiting.length) {
      document.documentElement.dataset.drawn = "all";
      return;
    }
    draw(waiting[0], false);
    setTimeout(drawNext, 0, waiting.slice(1));
  };

  if (typeof Plotly === "undefined") {
    for (const element of plots) {
      element.textContent = "This page fetches plotly.js for its plots, and could not. The numbers are below.";
    }
  } else {
    drawNext(plots);
    dark.addEventListener("change", () => drawAll(false));
    addEventListener("beforeprint", () => drawAll(true));
    addEventListener("afterprint", () => drawAll(false));
    paper.addEventListener("change", (event) => drawAll(event.matches));
  }

  const said = document.getElementById("said");
  const copied = (button, worked) => {
    const text = button.firstChild;
    text.data = worked ? "Copied" : "Select and copy";
    said.textContent = text.data;
    setTimeout(() => (text.data = "Copy"), 2000);
  };
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const code = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(code.textContent);
        copied(button, true);
      } catch {
        getSelection().selectAllChildren(code);
        copied(button, document.execCommand("copy"));
      }
    });
  }
})();
