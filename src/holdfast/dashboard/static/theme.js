// Runs before the first paint, so that a page never flashes in the other colours.
(() => {
  let kept = null;
  try {
    kept = localStorage.getItem("holdfast-theme");
  } catch {
    // a browser that keeps nothing follows the system
  }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
