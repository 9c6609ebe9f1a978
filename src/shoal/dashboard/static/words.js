// The same words for amounts as the server's pages use. What is not known is "no data", never 0.

export const NO_DATA = "no data";

export function mib(amount) {
  if (amount === null || amount === undefined) return NO_DATA;
  if (amount === 0) return "0 GiB";
  const gib = amount / 1024;
  if (gib < 1) return `${Math.round(amount)} MiB`;
  return `${gib >= 100 ? Math.round(gib) : Number(gib.toFixed(1))} GiB`;
}

export function percent(amount) {
  return amount === null || amount === undefined ? NO_DATA : `${Math.round(amount)} %`;
}

export function clock(time) {
  const when = new Date(time);
  return Number.isNaN(when.getTime()) ? String(time) : when.toLocaleTimeString([], { hour12: false });
}

export function since(time, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - new Date(time).getTime()) / 1000));
  if (seconds < 90) return `${seconds} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}
