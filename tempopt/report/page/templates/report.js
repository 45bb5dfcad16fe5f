(() => {
  const paper = matchMedia("print");
  const said = document.getElementById("said");
  let figures = {};
  let plots = [];

  const draw = (element, onPaper) => drawing.draw(element, figures[element.dataset.plot], onPaper);

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

  const start = () => {
    figures = JSON.parse(document.getElementById("figures").textContent);
    plots = [...document.querySelectorAll("[data-plot]")];
    if (typeof Plotly !== "undefined") drawNext(plots);
    else for (const element of plots) element.textContent = "plotly.js could not be loaded. The numbers are below.";
  };

  start();
  if (typeof Plotly !== "undefined") {
    drawing.dark.addEventListener("change", () => drawAll(false));
    addEventListener("beforeprint", () => drawAll(true));
    addEventListener("afterprint", () => drawAll(false));
    paper.addEventListener("change", (event) => drawAll(event.matches));
  }

  // Replace the content by that of the page as the server has it now; what is unfolded stays unfolded.
  const replaceContent = (page) => {
    const unfolded = [...document.querySelectorAll("details[open]")].map((details) => details.id);
    for (const part of ["header", "main", "#figures"]) {
      document.querySelector(part).replaceWith(page.querySelector(part));
    }
    for (const id of unfolded) document.getElementById(id)?.setAttribute("open", "");
    start();
  };

  const refresh = async () => {
    if (!document.hidden) {
      try {
        const response = await fetch(location.href);
        if (response.ok) {
          const page = new DOMParser().parseFromString(await response.text(), "text/html");
          const before = document.querySelector("main").textContent;
          if (page.querySelector("main").textContent !== before) replaceContent(page);
          if (!page.body.dataset.refresh) return;
        }
      } catch {
        said.textContent = "The server does not answer. This page shows the study as it was.";
      }
    }
    setTimeout(refresh, 1000 * document.body.dataset.refresh);
  };
  if (document.body.dataset.refresh) setTimeout(refresh, 1000 * document.body.dataset.refresh);

  const showCopied = (button, worked) => {
    const text = button.firstChild;
    text.data = worked ? "Copied" : "Select and copy";
    said.textContent = text.data;
    setTimeout(() => (text.data = "Copy"), 2000);
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const code = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(code.textContent);
      showCopied(button, true);
    } catch {
      getSelection().selectAllChildren(code);
      showCopied(button, document.execCommand("copy"));
    }
  });
})();
