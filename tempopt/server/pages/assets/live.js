"use strict";
// Read the page again every few seconds and replace its live part where it has changed.
(() => {
  const live = document.querySelector("[data-live]");
  const refresh = async () => {
    if (!document.hidden) {
      try {
        const response = await fetch(location.href, { headers: { accept: "text/html" } });
        if (response.status === 401) return location.reload();
        if (response.ok) {
          const page = new DOMParser().parseFromString(await response.text(), "text/html");
          const content = page.querySelector("[data-live]").innerHTML;
          if (content !== live.innerHTML && !live.contains(document.activeElement)) live.innerHTML = content;
        }
      } catch {
        // the server is away: the next attempt follows
      }
    }
    setTimeout(refresh, 1000 * live.dataset.live);
  };
  setTimeout(refresh, 1000 * live.dataset.live);
})();
