"use strict";
pages.live(document.querySelector("[data-live]"));
