// What every page does: tells how live it is, refreshes what stands in #live when the cluster changes, shows tips,
// copies commands. The map and plots are modules of their own, loaded where they are needed.

import { follow } from "./stream.js";
import { tips } from "./tips.js";
import { clock } from "./words.js";

// Seconds between two refreshes of a table at least.
const REFRESH = 5000;

const body = document.body;
const live = document.querySelector(".live");
const notice = document.getElementById("notice");
let heard = null;
let lostAt = null;

function tell(state, words) {
  live.dataset.state = state;
  live.textContent = words;
}

function warn(text, { bad = false, link = null } = {}) {
  const words = document.createElement("span");
  words.textContent = text;
  notice.replaceChildren(words);
  if (link) {
    const anchor = document.createElement("a");
    anchor.href = link.href;
    anchor.textContent = link.text;
    notice.append(anchor);
  }
  notice.classList.toggle("bad", bad);
  notice.hidden = false;
}

function calm() {
  notice.hidden = true;
  notice.replaceChildren();
}

function old(is) {
  if (is) body.dataset.old = "";
  else delete body.dataset.old;
}

function state(name, reason) {
  if (name === "live") {
    lostAt = null;
    calm();
    old(false);
    tell("live", heard ? `live · ${clock(heard)}` : "live");
    if (body.dataset.was === "lost") refresh();
    body.dataset.was = name;
  } else if (name === "lost") {
    lostAt ??= new Date();
    body.dataset.was = name;
    old(true);
    tell("lost", "connection lost");
    warn(`The connection was lost at ${clock(lostAt)}. You see the last picture; it is being tried again.`, { bad: true });
  } else ended(reason);
}

function ended(reason) {
  old(true);
  tell("ended", "ended");
  const next = encodeURIComponent(window.location.pathname + window.location.search);
  const text = reason === "signed-out" ? "You have signed out." : "Your session has ended: its token is not valid any more.";
  warn(text, { link: { href: `/sign-in?next=${next}`, text: "Sign in again" } });
}

// Each picture says when it was made, and since when the API server has been silent.
function seen(picture) {
  heard = picture.time;
  if (picture.oldSince) {
    old(true);
    tell("lost", `old · ${clock(picture.oldSince)}`);
    warn(`The API server has not answered since ${clock(picture.oldSince)}. You see the cluster as it was then.`);
  } else {
    calm();
    old(false);
    tell("live", `live · ${clock(picture.time)}`);
  }
}

let refreshed = 0;
let waiting = 0;

function refresh() {
  const part = document.getElementById("live");
  if (!part || waiting) return;
  const wait = Math.max(0, refreshed + REFRESH - Date.now());
  waiting = setTimeout(async () => {
    waiting = 0;
    if (document.hidden || busy(part)) return void retryLater();
    refreshed = Date.now();
    try {
      await window.htmx.ajax("GET", window.location.pathname + window.location.search, {
        source: part, target: "#live", select: "#live", swap: "outerHTML",
      });
    } catch {
      // No answer: the stream says that the connection is lost, and asks for this again when it is back.
    }
  }, wait);
}

function retryLater() {
  refreshed = Date.now();
  if (document.hidden) document.addEventListener("visibilitychange", refresh, { once: true });
  else refresh();
}

// Text that somebody is marking must not go away under their hands.
function busy(part) {
  const selection = window.getSelection();
  return selection !== null && !selection.isCollapsed && part.contains(selection.anchorNode);
}

function copying() {
  document.addEventListener("click", async (event) => {
    const button = event.target instanceof Element ? event.target.closest("button[data-copy]") : null;
    if (!button) return;
    const command = button.parentElement.querySelector("code").textContent;
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(button.parentElement.querySelector("code"));
      const selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      button.textContent = "Marked: copy it";
    }
    setTimeout(() => {
      button.textContent = "Copy";
    }, 2000);
  });
}

// Keys for all pages: "/" goes to the search.
function keys() {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target instanceof Element && event.target.closest("input, textarea, select")) return;
    const search = document.querySelector("input[type=search]");
    if (!search) return;
    event.preventDefault();
    search.focus();
    search.select();
  });
}

async function start() {
  tips();
  copying();
  keys();
  const tab = document.querySelector(".tabs [aria-current]");
  if (tab) tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.clientWidth / 2;
  // Who is not signed in any more is sent to the form: that must not take the place of a table.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr } = event.detail;
    if (xhr.status !== 401 && !(xhr.responseURL && new URL(xhr.responseURL).pathname === "/sign-in")) return;
    event.detail.shouldSwap = false;
    state("ended", "expired");
  });
  if (document.querySelector("figure.plot")) (await import("./plots.js")).plots();
  if (body.dataset.stream === undefined) return;
  const root = document.getElementById("map");
  const map = root ? new (await import("./map.js")).MapView(root) : null;
  const connection = follow("/api/v1/stream", map ? null : body.dataset.stream || null, {
    state,
    snapshot(picture) {
      seen(picture);
      map?.snapshot(picture);
      refresh();
    },
    delta(picture) {
      seen(picture);
      map?.delta(picture);
      refresh();
    },
  });
  window.addEventListener("pagehide", () => connection.close());
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) window.location.reload();
  });
}

start();
