"use strict";
(() => {
  const standing = document.getElementById("standing");
  pages.live(standing);
  if (standing.dataset.every) standing.addEventListener("replaced", () => plots.again());
})();
