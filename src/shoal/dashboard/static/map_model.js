// The map document as objects, and deltas applied to it. docs/dashboard.md has the format of both.

export const GOOD = 0;
export const BROKEN = 1;
export const MISSING = 0;
export const FRESH = 1;
export const STALE = 2;

const byName = new Intl.Collator("en", { numeric: true }).compare;

export class MapModel {
  constructor() {
    this.number = null;
    this.time = null;
    this.models = [];
    this.pods = [];
    this.nodes = [];
    this.byName = new Map();
  }

  snapshot(document) {
    this.number = document.number;
    this.time = document.time;
    this.models = document.models;
    this.pods = document.pods;
    this.byName = new Map(document.nodes.map((entry) => [entry[0], read(entry)]));
    this.order();
  }

  delta(document) {
    this.number = document.number;
    this.time = document.time;
    for (const [place, name] of Object.entries(document.models ?? {})) this.models[place] = name;
    for (const [place, entry] of Object.entries(document.pods ?? {})) this.pods[place] = entry;
    let moved = false;
    for (const [name, entry] of Object.entries(document.nodes ?? {})) {
      moved ||= entry === null || !this.byName.has(name);
      if (entry === null) this.byName.delete(name);
      else this.byName.set(name, read(entry));
    }
    if (moved) this.order();
    else this.nodes = this.nodes.map((node) => this.byName.get(node.name));
  }

  order() {
    this.nodes = [...this.byName.values()].sort((one, other) => byName(one.name, other.name));
  }

  podName(place) {
    if (place < 0) return "pods of namespaces you may not read";
    const pod = this.pods[place];
    return pod ? `${pod[0]}/${pod[1]}` : "a pod that has gone";
  }
}

function read([name, ready, cordoned, measured, since, cards]) {
  const node = { name, ready, cordoned, measured, since, cards: [] };
  node.cards = cards.map((card) => ({
    node,
    uuid: card[0],
    index: card[1],
    model: card[2],
    total: card[3],
    health: card[4],
    requested: card[5],
    used: card[6],
    unattributed: card[7],
    utilisation: card[8],
    exclusive: card[9],
    shares: card[10].map(([pod, requested, used]) => ({ pod, requested, used })),
  }));
  return node;
}

// Which questions the map can be asked: each finds the cards it is about.
export const SHOW = {
  over: (card) => card.shares.some((share) => share.used !== null && share.used > share.requested),
  unattributed: (card) => (card.unattributed ?? 0) > 0,
  idle: (card) => card.requested > 0 && card.used !== null && card.utilisation === 0,
  free: (card) => card.requested === 0 && !card.exclusive && card.health !== BROKEN,
  broken: (card) => card.health === BROKEN || !card.node.ready,
  unmeasured: (card) => card.node.measured !== FRESH,
};

// What somebody should look at, the largest first: waiting pods, pods beyond their request, memory of nobody, broken cards.
export function attention(model) {
  const found = { waiting: [], over: [], unattributed: [], broken: [] };
  model.pods.forEach((pod, place) => {
    if (pod?.[2] === "waiting") found.waiting.push({ pod: place });
  });
  for (const node of model.nodes) {
    for (const card of node.cards) {
      if (card.health === BROKEN) found.broken.push({ card, amount: 0 });
      if (card.unattributed) found.unattributed.push({ card, amount: card.unattributed });
      for (const share of card.shares) {
        const amount = share.used === null ? 0 : share.used - share.requested;
        if (amount > 0) found.over.push({ card, pod: share.pod, amount });
      }
    }
  }
  found.over.sort((one, other) => other.amount - one.amount);
  found.unattributed.sort((one, other) => other.amount - one.amount);
  return found;
}

export function matching(model, { search = "", show = "" }) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const asked = SHOW[show];
  if (!words.length && !asked) return { nodes: model.nodes, cards: null };
  const found = new Set();
  const nodes = model.nodes.filter((node) => {
    let any = false;
    for (const card of node.cards) {
      if (asked && !asked(card)) continue;
      if (words.length && !words.every((word) => says(model, card, word))) continue;
      found.add(card);
      any = true;
    }
    return any;
  });
  return { nodes, cards: found };
}

function says(model, card, word) {
  return (
    card.node.name.toLowerCase().includes(word) ||
    (model.models[card.model] ?? "").toLowerCase().includes(word) ||
    (card.uuid ?? "").toLowerCase().includes(word) ||
    card.shares.some((share) => share.pod >= 0 && model.podName(share.pod).toLowerCase().includes(word))
  );
}
