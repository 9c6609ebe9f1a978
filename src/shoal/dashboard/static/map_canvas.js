// Draws nodes and cards on a canvas as large as what is seen of them, so that 8,000 cards cost no more than 500.
// Each card has two lanes: above what its pods requested, below what they use.

import { BROKEN, FRESH, MISSING, STALE } from "./map_model.js";

const SIZES = {
  large: { width: 250, head: 24, row: 26, lane: 8, gap: 18, label: 22 },
  medium: { width: 150, head: 18, row: 12, lane: 4, gap: 12, label: 0 },
  small: { width: 74, head: 0, row: 8, lane: 3, gap: 9, label: 0 },
  tiny: { width: 32, head: 0, row: 5, lane: 2, gap: 5, label: 0 },
};
const PAD = 12;
export const SIZE_NAMES = Object.keys(SIZES);

// Where each node stands: rows of nodes, each as high as its node with the most cards.
export function arrange(nodes, width, height, wanted) {
  for (const name of SIZE_NAMES) {
    const layout = arrangeAs(nodes, width, SIZES[name], name);
    if (wanted === name || (!SIZES[wanted] && (layout.height <= height || name === "tiny"))) return layout;
  }
  return arrangeAs(nodes, width, SIZES.tiny, "tiny");
}

function arrangeAs(nodes, width, size, name) {
  const inner = Math.max(size.width, width - 2 * PAD);
  const fitting = Math.max(1, Math.floor((inner + size.gap) / (size.width + size.gap)));
  const columns = Math.min(fitting, Math.max(nodes.length, 1));
  // Few nodes need not fill the width: a bar as wide as the screen is hard to read.
  const tile = Math.min((inner - size.gap * (columns - 1)) / columns, size.width * 2.2);
  const tops = [];
  let top = PAD;
  for (let at = 0; at < nodes.length; at += columns) {
    tops.push(top);
    let most = 1;
    for (let place = at; place < Math.min(at + columns, nodes.length); place += 1) {
      most = Math.max(most, nodes[place].cards.length);
    }
    top += size.head + most * size.row + size.gap;
  }
  return { nodes, size, name, columns, tile, tops, height: top - size.gap + PAD };
}

function rowAt(layout, y) {
  let low = 0;
  let high = layout.tops.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (layout.tops[middle] <= y) low = middle;
    else high = middle - 1;
  }
  return low;
}

// The card at a place of the whole map; null between them.
export function cardAt(layout, x, y) {
  if (!layout.nodes.length) return null;
  const { size, tile, columns, tops, nodes } = layout;
  const row = rowAt(layout, y);
  const column = Math.floor((x - PAD) / (tile + size.gap));
  if (column < 0 || column >= columns || x - PAD - column * (tile + size.gap) > tile) return null;
  const node = nodes[row * columns + column];
  if (!node) return null;
  const down = y - tops[row] - size.head;
  const place = down < 0 ? 0 : Math.floor(down / size.row);
  return node.cards[place] ?? null;
}

// The card a key leads to: left and right between nodes, up and down between the cards of a column.
export function cardFrom(layout, card, key) {
  const { nodes, columns } = layout;
  const all = nodes.filter((node) => node.cards.length);
  if (!all.length) return null;
  if (key === "Home") return all[0].cards[0];
  if (key === "End") return all.at(-1).cards.at(-1);
  const at = card ? nodes.findIndex((node) => node.name === card.node.name) : -1;
  if (at < 0) return all[0].cards[0];
  const place = nodes[at].cards.findIndex((one) => one.index === card.index && one.uuid === card.uuid);
  const same = (node, index) => (node?.cards.length ? node.cards[Math.min(index, node.cards.length - 1)] : null);
  if (key === "ArrowRight") return same(nodes[at + 1], place) ?? card;
  if (key === "ArrowLeft") return same(nodes[at - 1], place) ?? card;
  if (key === "ArrowDown") return nodes[at].cards[place + 1] ?? same(nodes[at + columns], 0) ?? card;
  if (key === "ArrowUp") return nodes[at].cards[place - 1] ?? same(nodes[at - columns], Infinity) ?? card;
  if (key === "PageDown") return same(nodes[Math.min(at + columns * 5, nodes.length - 1)], place) ?? card;
  if (key === "PageUp") return same(nodes[Math.max(at - columns * 5, 0)], place) ?? card;
  return null;
}

export function boxOf(layout, card) {
  const at = layout.nodes.findIndex((node) => node.name === card.node.name);
  const place = at < 0 ? -1 : layout.nodes[at].cards.findIndex((one) => one.index === card.index);
  if (place < 0) return null;
  const { size, tile, columns, tops } = layout;
  return {
    x: PAD + (at % columns) * (tile + size.gap),
    y: tops[Math.floor(at / columns)] + size.head + place * size.row,
    width: tile,
    height: size.lane * 2 + 1,
  };
}

const NAMES = [
  "ink", "muted", "line", "strong-line", "surface", "free", "requested", "requested-2", "used", "used-2", "over",
  "unattributed", "bad", "stale", "accent",
];

export class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    // All cards as they were last drawn: what is pointed at is ringed over a copy of them.
    this.layer = document.createElement("canvas");
    this.context = this.layer.getContext("2d", { alpha: false });
    this.names = new Map();
    this.drawn = "";
    this.theme();
  }

  theme() {
    const style = getComputedStyle(document.documentElement);
    this.colour = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    this.hatch = this.pattern(this.colour.free, this.colour.unattributed, 6, 1.6);
    this.stripes = this.pattern(this.colour.over, this.colour.surface, 5, 1.2);
    this.others = this.pattern(this.colour["strong-line"], this.colour.free, 4, 1);
    this.font = getComputedStyle(document.body).fontFamily;
    this.names.clear();
    this.drawn = "";
  }

  pattern(ground, line, step, width) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = step;
    const context = tile.getContext("2d");
    context.fillStyle = ground;
    context.fillRect(0, 0, step, step);
    context.strokeStyle = line;
    context.lineWidth = width;
    context.beginPath();
    for (const shift of [-step, 0, step]) {
      context.moveTo(shift, step);
      context.lineTo(shift + step, 0);
    }
    context.stroke();
    return this.context.createPattern(tile, "repeat");
  }

  // What is between `top` and `top + height` of the map. `found` dims all other cards; `focus` and `hover` are ringed.
  // `version` changes whenever cards or their places do.
  draw(layout, { version, top, width, height, found, focus, hover }) {
    const ratio = window.devicePixelRatio || 1;
    const key = [version, top, width, height, ratio].join();
    if (key !== this.drawn) {
      this.drawn = key;
      this.drawCards(layout, { top, width, height, ratio, found });
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.layer, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, -top * ratio);
    this.ring(context, layout, hover, this.colour["strong-line"], 1.5);
    this.ring(context, layout, focus, this.colour.accent, 2.5);
  }

  drawCards(layout, { top, width, height, ratio, found }) {
    for (const canvas of [this.canvas, this.layer]) {
      if (canvas.width === Math.round(width * ratio) && canvas.height === Math.round(height * ratio)) continue;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const { context } = this;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = this.colour.surface;
    context.fillRect(0, 0, width, height);
    if (!layout.nodes.length) return;
    context.translate(0, -top);
    const last = rowAt(layout, top + height);
    for (let row = rowAt(layout, top); row <= last; row += 1) {
      for (let column = 0; column < layout.columns; column += 1) {
        const node = layout.nodes[row * layout.columns + column];
        if (node) this.node(layout, node, PAD + column * (layout.tile + layout.size.gap), layout.tops[row], found);
      }
    }
  }

  ring(context, layout, card, colour, line) {
    const box = card ? boxOf(layout, card) : null;
    if (!box) return;
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(box.x - 2.5, box.y - 2.5, box.width + 5, box.height + 5);
  }

  node(layout, node, x, y, found) {
    const { size, tile } = layout;
    if (size.head) this.head(layout, node, x, y);
    node.cards.forEach((card, place) => {
      this.context.globalAlpha = found && !found.has(card) ? 0.22 : 1;
      this.card(layout, card, x, y + size.head + place * size.row);
    });
    this.context.globalAlpha = 1;
    if (!size.head && !(node.ready && !node.cordoned)) {
      this.context.strokeStyle = node.ready ? this.colour["strong-line"] : this.colour.bad;
      this.context.lineWidth = 1;
      this.context.setLineDash(node.ready ? [2, 2] : []);
      this.context.strokeRect(x - 1.5, y - 1.5, tile + 3, node.cards.length * size.row + 1);
      this.context.setLineDash([]);
    }
  }

  head(layout, node, x, y) {
    const { context, colour } = this;
    const large = layout.name === "large";
    context.font = `${large ? 600 : 500} ${large ? 13 : 11}px ${this.font}`;
    const [mark, markColour] = nodeMark(node, colour);
    const markWidth = mark ? context.measureText(mark).width + 8 : 0;
    context.textBaseline = "alphabetic";
    context.fillStyle = colour.ink;
    context.fillText(this.fitted(node.name, layout.tile - markWidth), x, y + layout.size.head - (large ? 8 : 6));
    if (!mark) return;
    context.fillStyle = markColour;
    context.fillText(mark, x + layout.tile - markWidth + 8, y + layout.size.head - (large ? 8 : 6));
  }

  fitted(text, width) {
    const key = `${text}|${Math.floor(width)}|${this.context.font}`;
    const known = this.names.get(key);
    if (known !== undefined) return known;
    let fit = text;
    if (this.context.measureText(text).width > width) {
      let length = text.length;
      while (length > 1 && this.context.measureText(`…${text.slice(-length)}`).width > width) length -= 1;
      fit = `…${text.slice(-length)}`; // names of nodes differ at their end
    }
    if (this.names.size > 5000) this.names.clear();
    this.names.set(key, fit);
    return fit;
  }

  card(layout, card, x, y) {
    const { size } = layout;
    const { context, colour } = this;
    const text = size.label ? 78 : 0;
    const left = x + size.label;
    const width = layout.tile - size.label - text;
    const below = y + size.lane + 1;
    if (size.label) {
      context.font = `11px ${this.font}`;
      context.fillStyle = colour.muted;
      context.fillText(String(card.index), x, y + size.lane + 4);
      context.textAlign = "right";
      context.fillText(told(card), x + layout.tile, y + size.lane + 5);
      context.textAlign = "left";
    }
    context.fillStyle = colour.free;
    context.fillRect(left, y, width, size.lane);
    this.requested(card, left, y, width, size.lane);
    if (card.used === null) this.noData(left, below, width, size.lane);
    else this.used(card, left, below, width, size.lane);
    if (card.health === BROKEN) this.cross(left, y, width, size.lane * 2 + 1);
  }

  requested(card, left, y, width, lane) {
    const { context, colour } = this;
    const scale = width / Math.max(card.total, card.requested, 1);
    let x = left;
    card.shares.forEach((share, place) => {
      const long = share.requested * scale;
      if (long <= 0) return;
      context.fillStyle = share.pod < 0 ? this.others : colour[place % 2 ? "requested-2" : "requested"];
      context.fillRect(x, y, Math.max(long - (long > 3 ? 1 : 0), 0.5), lane);
      x += long;
    });
    // What is booked and in no share that is told, a whole card for example.
    const rest = card.requested * scale - (x - left);
    if (rest > 0.5) {
      context.fillStyle = colour.requested;
      context.fillRect(x, y, rest, lane);
    }
  }

  used(card, left, y, width, lane) {
    const { context, colour } = this;
    const stale = card.node.measured === STALE;
    const scale = width / Math.max(card.total, 1);
    const end = left + width;
    context.fillStyle = colour.free;
    context.fillRect(left, y, width, lane);
    const before = context.globalAlpha;
    if (stale) context.globalAlpha = before * 0.5;
    let x = left;
    const paint = (amount, style) => {
      const long = Math.min(amount * scale, end - x);
      if (long <= 0) return;
      context.fillStyle = style;
      context.fillRect(x, y, long, lane);
      x += long;
    };
    let known = card.unattributed ?? 0;
    card.shares.forEach((share, place) => {
      if (share.used === null) return;
      known += share.used;
      paint(Math.min(share.used, share.requested), colour[place % 2 ? "used-2" : "used"]);
      paint(share.used - share.requested, this.stripes);
    });
    paint(card.used - known, colour.used);
    paint(card.unattributed ?? 0, this.hatch);
    context.globalAlpha = before;
    if (stale) this.dots(left, y, width, lane);
  }

  noData(left, y, width, lane) {
    const { context, colour } = this;
    context.strokeStyle = colour["strong-line"];
    context.lineWidth = 1;
    context.setLineDash([3, 3]);
    context.strokeRect(left + 0.5, y + 0.5, width - 1, Math.max(lane - 1, 1));
    context.setLineDash([]);
  }

  dots(left, y, width, lane) {
    this.context.fillStyle = this.colour.stale;
    for (let x = left + 2; x < left + width - 1; x += 7) this.context.fillRect(x, y + lane / 2 - 0.75, 1.5, 1.5);
  }

  cross(left, y, width, height) {
    const { context, colour } = this;
    context.strokeStyle = colour.bad;
    context.lineWidth = 1.5;
    context.strokeRect(left + 0.5, y + 0.5, width - 1, height - 1);
    context.beginPath();
    const middle = left + width / 2;
    const half = Math.min(width / 2, height);
    context.moveTo(middle - half, y);
    context.lineTo(middle + half, y + height);
    context.moveTo(middle + half, y);
    context.lineTo(middle - half, y + height);
    context.stroke();
  }
}

function nodeMark(node, colour) {
  if (!node.ready) return ["✕ not ready", colour.bad];
  if (node.measured === STALE) return ["◷ stale", colour.stale];
  if (node.cordoned) return ["⊘ cordoned", colour.muted];
  if (node.measured === MISSING) return ["○ no data", colour.muted];
  return ["", ""];
}

function told(card) {
  const gib = (amount) => Math.round((amount / 1024) * 10) / 10;
  if (card.health === BROKEN) return "broken";
  const measured = card.node.measured === FRESH || card.node.measured === STALE;
  const used = card.used === null || !measured ? "–" : gib(card.used);
  return `${gib(card.requested)} · ${used} / ${gib(card.total)}`;
}
