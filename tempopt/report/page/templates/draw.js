"use strict";
// How a figure is drawn: in the colours of the ground that it stands on, and as the place has room.
const drawing = (() => {
  const DARK = DARK_COLOURS;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const PAPER_WIDTH = 660;

  // A copy, in the colours of the ground that it will stand on.
  const coloured = (value, isDark) => {
    if (typeof value === "string") return isDark ? DARK[value] ?? value : value;
    if (Array.isArray(value)) return value.map((each) => coloured(each, isDark));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, coloured(each, isDark)]));
  };

  const draw = (element, given, onPaper) => {
    const figure = coloured(given, dark.matches && !onPaper);
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

  return { dark, draw };
})();
