(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll("[data-plot]")];
  const paper = matchMedia("print");

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

  if (typeof Plotly === "undefined") {
    for (const element of plots) {
      element.textContent = "This page fetches plotly.js for its plots, and could not. The numbers are below.";
    }
  } else {
    drawNext(plots);
    drawing.dark.addEventListener("change", () => drawAll(false));
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
