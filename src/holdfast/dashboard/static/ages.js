// Times that pass: `12 s ago` and `4 min 3 s left` go on between two looks at the files.

export function span(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  for (const [unit, length, smaller, part, end] of [
    ["min", 60, "s", 1, 3600],
    ["h", 3600, "min", 60, 86400],
    ["d", 86400, "h", 3600, Infinity],
  ]) {
    if (seconds < end) {
      const rest = Math.floor((seconds % length) / part);
      return `${Math.floor(seconds / length)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
    }
  }
  return "";
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function ages() {
  const now = Date.now();
  for (const time of document.querySelectorAll("time[data-at]")) {
    put(time, `${span(Math.max(0, (now - Number(time.dataset.at)) / 1000))} ago`);
  }
  for (const time of document.querySelectorAll("time[data-until]")) {
    const left = (Number(time.dataset.until) - now) / 1000;
    put(time, left > 0 ? span(left) : "any moment");
  }
}
