// Throughput and latency with axes, a crosshair and zoom (drag; double click goes back). The server drew the same as
// SVG, which is what a browser without scripts shows.

const drawn = new Map();

function colour(name) {
  // A canvas does not know CSS variables, nor light-dark().
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const faint = (rgb) => rgb.replace(/^rgb\(([^)]*)\)$/, "rgba($1, 0.14)");

function short(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "s") {
    if (value === 0) return "0";
    return value < 1 ? `${Math.round(value * 1000)} ms` : value < 60 ? `${+value.toFixed(1)} s` : `${+(value / 60).toFixed(1)} min`;
  }
  for (const [limit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= limit) return `${+(value / limit).toFixed(1)} ${letter}`;
  }
  return `${+value.toFixed(1)}`;
}

const two = (number) => String(number).padStart(2, "0");

function clock(seconds, step) {
  const at = new Date(seconds * 1000);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  if (step >= 86400) return day;
  return `${two(at.getHours())}:${two(at.getMinutes())}${step < 60 ? `:${two(at.getSeconds())}` : ""}`;
}

// Without a pointer over the plot, its newest numbers.
const newest = (plot) => plot.cursor.idx ?? plot.setLegend({ idx: plot.data[0].length - 1 }, false);

function options(figure, width) {
  const { name, unit, tone } = figure.dataset;
  const [line, text, grid] = [colour(tone), colour("--muted"), colour("--line")];
  const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  return {
    width,
    height: 180,
    cursor: { y: false, points: { size: 7 } },
    hooks: { ready: [newest], setCursor: [newest], setData: [newest] },
    scales: { x: { time: true }, y: { range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    axes: [
      { ...axis, space: 80, values: (u, ticks, index, space, step) => ticks.map((tick) => clock(tick, step)) },
      { ...axis, size: 56, values: (u, ticks) => ticks.map((tick) => short(tick, unit)) },
    ],
    series: [
      { label: "at", value: (u, at) => (at === null ? "–" : clock(at, 1)) },
      { label: name, stroke: line, fill: faint(line), width: 2, spanGaps: false, points: { show: false }, value: (u, v) => short(v, unit) },
    ],
  };
}

// Draw every plot of the page, or give those that are there their new numbers.
export function plots({ again = false } = {}) {
  if (typeof uPlot === "undefined") return;
  for (const figure of document.querySelectorAll("figure.plot[data-points]")) {
    const room = figure.querySelector(".canvas");
    const points = JSON.parse(figure.dataset.points);
    const known = drawn.get(figure.id);
    figure.classList.add("live-plot");
    if (known && !again && known.root.isConnected) {
      if (known.told !== figure.dataset.points) known.setData(points);
      known.told = figure.dataset.points;
      continue;
    }
    known?.destroy();
    const plot = new uPlot(options(figure, room.clientWidth), points, room);
    plot.told = figure.dataset.points;
    drawn.set(figure.id, plot);
  }
}

new ResizeObserver(() => {
  for (const plot of drawn.values()) {
    const width = plot.root.parentElement?.clientWidth;
    if (width && width !== plot.width) plot.setSize({ width, height: plot.height });
  }
}).observe(document.documentElement);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots({ again: true }));
