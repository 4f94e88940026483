"use strict";

// Loads the page again and takes over what is live: the server has made and
// escaped all of it.
const period = 2000;
let loads = 0;
let asking = null;

async function refresh() {
  if (asking) asking.abort();
  const mine = asking = new AbortController();
  try {
    const answer = await fetch(location.href, { signal: mine.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const live = page.getElementById("live");
    if (mine !== asking) return;
    const sideways = Array.from(document.querySelectorAll("main > table"), (t) => [t.id, t.scrollLeft]);
    document.getElementById("live").replaceWith(document.adoptNode(live));
    for (const [id, left] of sideways) {
      const table = document.getElementById(id);
      if (table) table.scrollLeft = left;
    }
    document.documentElement.dataset.loads = String(++loads);
  } catch (failure) {
    if (failure.name !== "AbortError") document.getElementById("lost").hidden = false;
  } finally {
    if (mine === asking) asking = null;
  }
}

// The filter takes effect while it is typed.
const form = document.getElementById("filter");
form.addEventListener("input", () => {
  history.replaceState(null, "", "/?" + new URLSearchParams(new FormData(form)));
  refresh();
});
form.addEventListener("submit", (event) => event.preventDefault());

setInterval(() => {
  if (!document.hidden) refresh();
}, period);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
