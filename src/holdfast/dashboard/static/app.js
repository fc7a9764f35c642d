// What makes a page live: it is asked for again when the server says that something changed, and only what differs is
// put in place, so that focus, selection, scrolling and open details stay as they are.
import { ages } from "./ages.js";
import { morph } from "./morph.js";
import { orders } from "./orders.js";
import { plots } from "./plots.js";

const here = document.body.dataset;

// -- colours ---------------------------------------------------------------------------------------------------------

const THEMES = { system: ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };
const switcher = document.getElementById("theme");

function show(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  switcher.textContent = THEMES[theme][0];
  switcher.setAttribute("aria-label", `Colours: ${THEMES[theme][1]}`);
}

switcher.addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % names.length];
  show(next);
  plots({ again: true });
  try {
    if (next === "system") localStorage.removeItem("holdfast-theme");
    else localStorage.setItem("holdfast-theme", next);
  } catch {
    // a browser that keeps nothing: it holds for this page
  }
});
show(document.documentElement.dataset.theme ?? "system");

// -- the timeline ----------------------------------------------------------------------------------------------------

// Below it stands the newest checkpoint, or the one that somebody looks at.
function tell(event) {
  const readout = document.getElementById("readout");
  if (!readout) return;
  const bar = event.target.closest?.("[data-tip]");
  readout.toggleAttribute("data-keep", Boolean(bar));
  if (bar) readout.textContent = bar.dataset.tip;
}

document.addEventListener("pointerover", tell);
document.addEventListener("focusin", tell);
document.addEventListener("keydown", (event) => {
  const bar = event.target.closest?.(".timeline a");
  const step = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key];
  if (!bar || !step) return;
  const next = bar[step];
  if (next?.matches("a")) {
    bar.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
    event.preventDefault();
  }
});

// -- live ------------------------------------------------------------------------------------------------------------

const live = document.getElementById("live");
let server = null;
let busy = false;
let again = false;
let later = null;
// A page that is costly to make (a summary of 100,000 checkpoints) is asked for less often: it takes a fifth of the time.
const EASY = 500;
const pause = (cost) => (cost > EASY ? 4 * cost : 0);
const first = performance.getEntriesByType("navigation")[0];
let soonest = first ? first.responseEnd + pause(first.responseEnd - first.requestStart) : 0;

function say(on, text) {
  live.classList.toggle("on", on);
  live.querySelector(".live-text").textContent = text;
}

export async function refresh(now = false) {
  if (busy) {
    again = true;
    return;
  }
  const wait = soonest - performance.now();
  if (wait > 0 && !now) {
    later ??= setTimeout(() => {
      later = null;
      refresh();
    }, wait);
    return;
  }
  clearTimeout(later);
  later = null;
  busy = true;
  const begun = performance.now();
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("main");
    if (fresh) {
      morph(document.getElementById("main"), fresh);
      document.title = page.title;
      ages();
      plots();
      live.classList.remove("beat");
      void live.offsetWidth;
      live.classList.add("beat");
    }
  } catch {
    say(false, "not live"); // the server is gone; the stream tells when it is back
  } finally {
    busy = false;
    soonest = performance.now() + pause(performance.now() - begun);
    if (again) {
      again = false;
      setTimeout(() => refresh(), 200);
    }
  }
}

if (here.live === "yes") {
  const stream = new EventSource("/api/events");
  stream.addEventListener("hello", (event) => {
    const known = server;
    server = JSON.parse(event.data).server;
    say(true, "live");
    if (known !== null && known !== server) location.reload();
    else refresh(); // something may have changed since this page was made
  });
  stream.addEventListener("change", (event) => {
    const { pipelines } = JSON.parse(event.data);
    if (here.slug === "" || pipelines.includes(here.slug)) refresh();
  });
  stream.addEventListener("error", () => say(false, "not live"));
  // A page in the browser's memory keeps no stream open, and starts anew when it is shown again.
  addEventListener("pagehide", () => stream.close());
  addEventListener("pageshow", (event) => event.persisted && location.reload());
}

ages();
plots();
setInterval(ages, 1000);
orders(() => refresh(true));
