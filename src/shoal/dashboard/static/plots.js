// History plots: each figure names where its points are. Gaps stay gaps; under a plot stand its numbers in words.

import { element, mib, percent } from "./words.js";

const AGAIN = 15000;
const HEIGHT = 170;

const UNITS = {
  MiB: { told: mib, axis: mib, steps: [64, 256, ...Array.from({ length: 24 }, (_, power) => 1024 * 2 ** power)] },
  percent: { told: percent, axis: (value) => `${value} %` },
  celsius: { told: (value) => `${Math.round(value)} °C`, axis: (value) => `${value} °` },
  watts: { told: (value) => `${Math.round(value)} W`, axis: (value) => `${value} W` },
  ratio: { told: (value) => percent(value * 100), axis: (value) => percent(value * 100) },
  number: { told: (value) => String(Math.round(value * 100) / 100), axis: (value) => String(value) },
};

export function plots() {
  const all = [...document.querySelectorAll("figure.plot")].map((figure) => new Plot(figure));
  const load = () => {
    if (!document.hidden) for (const plot of all) plot.load();
  };
  load();
  setInterval(load, AGAIN);
  document.addEventListener("shoal:theme", () => {
    for (const plot of all) plot.show();
  });
}

class Plot {
  constructor(figure) {
    this.figure = figure;
    this.holder = figure.querySelector(".canvas");
    this.words = figure.querySelector(".words");
    this.unit = UNITS[figure.dataset.unit] ?? UNITS.number;
    this.chart = null;
    this.lines = null;
    new ResizeObserver(() => this.resize()).observe(this.holder);
  }

  async load() {
    let answer;
    let told;
    try {
      answer = await fetch(this.figure.dataset.src, { headers: { Accept: "application/json" }, cache: "no-store" });
      told = await answer.json();
    } catch {
      // Whether the server is there is told at the top; the last plot stays.
      return;
    }
    if (answer.ok) {
      this.document = told;
      this.show();
    } else if (!this.document) {
      this.nothing(told.error?.message ?? `HTTP status ${answer.status}`);
    }
  }

  nothing(why) {
    this.chart?.destroy();
    this.chart = null;
    this.holder.replaceChildren(element("div", { class: "plot-empty" }, why));
    this.words.textContent = "no data";
  }

  show() {
    if (!this.document) return;
    const { times, lines } = linesOf(this.document, this.figure.dataset);
    if (!times.length || lines.every((line) => line.level || line.values.every((value) => value === null))) {
      this.nothing("No data for this time.");
      return;
    }
    this.tell(times, lines);
    const data = [times, ...lines.map((line) => line.values)];
    const names = JSON.stringify([lines.map((line) => line.name), document.documentElement.dataset.theme, colours()]);
    if (this.chart && names === this.names) {
      this.chart.setData(data);
      return;
    }
    this.names = names;
    this.chart?.destroy();
    this.holder.replaceChildren();
    this.chart = new window.uPlot(this.options(lines), data, this.holder);
  }

  options(lines) {
    const colour = colours();
    const axis = { stroke: colour.muted, grid: { stroke: colour.line, width: 1 }, ticks: { stroke: colour.line, width: 1 } };
    const top = Number(this.figure.dataset.top) || 0;
    return {
      width: Math.max(this.holder.clientWidth, 200),
      height: HEIGHT,
      cursor: { drag: { x: false, y: false } },
      legend: { live: true },
      scales: {
        y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(top, (high ?? 1) * 1.08, 1)] },
      },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map(shortTime(ticks)) },
        { ...axis, size: 66, ...(this.unit.steps ? { incrs: this.unit.steps } : {}), values: (_, ticks) => ticks.map((tick) => this.unit.axis(tick)) },
      ],
      series: [
        { label: "time", value: (_, value) => (value === null ? "" : new Date(value * 1000).toLocaleString([], { hour12: false })) },
        ...lines.map((line, place) => ({
          label: line.name,
          stroke: line.level ? colour.lines[1] : colour.lines[place % colour.lines.length],
          // Lines are told apart without colour, too.
          dash: line.level ? [6, 4] : [[], [8, 3], [2, 3], [10, 3, 2, 3]][place % 4],
          width: 1.6,
          spanGaps: false,
          points: { show: line.values.filter((value) => value !== null).length < 3 },
          value: (_, value, __, place) => (place === null ? "" : value === null ? "no data" : this.unit.told(value)),
        })),
      ],
    };
  }

  tell(times, lines) {
    const parts = lines.filter((line) => !line.level).slice(0, 4).map((line) => {
      const known = line.values.filter((value) => value !== null);
      if (!known.length) return `${line.name}: no data`;
      const last = line.values.at(-1);
      const now = last === null ? "no data now" : `now ${this.unit.told(last)}`;
      return `${line.name}: ${now}, highest ${this.unit.told(known.reduce((most, one) => Math.max(most, one), -Infinity))}`;
    });
    const gaps = times.length - lines[0].values.filter((value) => value !== null).length;
    if (gaps) parts.push(`no data for ${Math.round((gaps / times.length) * 100)} % of the time`);
    this.words.textContent = parts.join(" · ");
  }

  resize() {
    if (this.chart) this.chart.setSize({ width: Math.max(this.holder.clientWidth, 200), height: HEIGHT });
  }
}

function shortTime(ticks) {
  const long = ticks.length > 1 && ticks.at(-1) - ticks[0] > 172800;
  return (tick) => {
    const when = new Date(tick * 1000);
    if (long) return when.toLocaleDateString([], { day: "2-digit", month: "2-digit" });
    return when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  };
}

const NAMES = {
  percent: "of what is free", freeMiB: "free", requestedMiB: "requested", usedMiB: "used", freeCards: "free cards",
};

// What a figure shows of a document: of /history a line for each card, of /waste one for each series.
export function linesOf(document, { series, level }) {
  if (document.points) {
    const points = document.now ? [...document.points, document.now] : document.points;
    const times = points.map((point) => seconds(point.time));
    const lines = series.split(",").map((name) => ({
      name: NAMES[name] ?? name,
      values: points.map((point) => point[name] ?? null),
    }));
    return { times, lines };
  }
  const found = document.lines ?? [];
  const long = Math.max(0, ...found.map((line) => line.values.length));
  const start = seconds(document.since);
  const times = Array.from({ length: long }, (_, step) => start + step * document.step);
  const lines = found.map((line) => ({
    name: found.length === 1 ? document.series : `card ${line.index ?? line.card}`,
    values: Array.from({ length: long }, (_, step) => line.values[step] ?? null),
  }));
  if (level !== undefined && lines.length) {
    lines.push({ name: "requested", values: times.map(() => Number(level)), level: true });
  }
  return { times, lines };
}

function seconds(time) {
  return new Date(time).getTime() / 1000;
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  return { muted: of("muted"), line: of("line"), lines: [of("used"), of("requested"), of("over"), of("stale")] };
}
