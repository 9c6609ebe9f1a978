// Follows /api/v1/stream by fetch, not by EventSource: a caller can begin at the number of the picture it has, and sees
// the status when it is turned away. It says what state the connection is in, and comes back by itself.

const FIRST_WAIT = 1000;
const LONGEST_WAIT = 20000;
// The server sends a comment every 15 s: silence for longer is a dead connection.
const SILENCE = 40000;

// handlers: snapshot(document), delta(document), state(name, words); name is live, lost or ended.
export function follow(url, number, handlers) {
  const connection = { number, closed: false, abort: null, wait: FIRST_WAIT, timer: 0 };
  connect(url, connection, handlers);
  // A tab that comes back from the background need not wait for its turn.
  const wake = () => {
    if (!document.hidden && connection.timer) retry(url, connection, handlers, 0);
  };
  document.addEventListener("visibilitychange", wake);
  window.addEventListener("online", wake);
  return {
    close() {
      connection.closed = true;
      clearTimeout(connection.timer);
      document.removeEventListener("visibilitychange", wake);
      window.removeEventListener("online", wake);
      connection.abort?.abort();
    },
  };
}

async function connect(url, connection, handlers) {
  connection.timer = 0;
  connection.abort = new AbortController();
  const headers = { Accept: "text/event-stream" };
  if (connection.number !== null) headers["Last-Event-ID"] = String(connection.number);
  try {
    const answer = await fetch(url, { headers, signal: connection.abort.signal, cache: "no-store", redirect: "error" });
    if (answer.status === 401) return ended(connection, handlers, "expired");
    if (!answer.ok || !answer.body) throw new Error(`HTTP status ${answer.status}`);
    handlers.state("live", "");
    connection.wait = FIRST_WAIT;
    await read(answer.body, connection, handlers);
  } catch (error) {
    if (connection.closed || error.name === "ShoalEnded") return undefined;
  }
  if (connection.closed) return undefined;
  handlers.state("lost", "");
  return retry(url, connection, handlers, connection.wait * (0.75 + Math.random() / 2));
}

function retry(url, connection, handlers, wait) {
  clearTimeout(connection.timer);
  connection.wait = Math.min(connection.wait * 2, LONGEST_WAIT);
  connection.timer = setTimeout(() => connect(url, connection, handlers), wait);
}

function ended(connection, handlers, reason) {
  connection.closed = true;
  handlers.state("ended", reason);
}

async function read(body, connection, handlers) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let silence = 0;
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(() => connection.abort.abort(), SILENCE);
  };
  let rest = "";
  try {
    for (;;) {
      heard();
      const { value, done } = await reader.read();
      if (done) return;
      rest = (rest + value).replaceAll("\r\n", "\n");
      let end = rest.indexOf("\n\n");
      while (end >= 0) {
        take(rest.slice(0, end), connection, handlers);
        rest = rest.slice(end + 2);
        end = rest.indexOf("\n\n");
      }
    }
  } finally {
    clearTimeout(silence);
  }
}

function take(block, connection, handlers) {
  let event = "message";
  let id = null;
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("id:")) id = line.slice(3).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  if (event === "end") {
    const reason = reasonOf(data.join("\n"));
    if (reason === "stopping") throw new Error("the server stops"); // another one may come
    ended(connection, handlers, reason);
    throw Object.assign(new Error(reason), { name: "ShoalEnded" });
  }
  if (event !== "snapshot" && event !== "delta") return;
  const document = JSON.parse(data.join("\n"));
  connection.number = id ?? document.number;
  handlers[event](document);
}

function reasonOf(text) {
  try {
    const document = JSON.parse(text);
    return typeof document === "string" ? document : document.reason;
  } catch {
    return text.trim();
  }
}
