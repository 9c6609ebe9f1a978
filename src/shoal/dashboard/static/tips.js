// What explains a number: shown for whatever has data-tip, when the pointer or the keyboard is there. Escape hides it.

let tip = null;
let owner = null;

function show(target) {
  hide();
  owner = target;
  tip = document.createElement("div");
  tip.className = "tip";
  tip.id = "tip";
  tip.setAttribute("role", "tooltip");
  tip.textContent = target.dataset.tip;
  document.body.append(tip);
  target.setAttribute("aria-describedby", "tip");
  const at = target.getBoundingClientRect();
  const own = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.left, window.innerWidth - own.width - 8));
  const below = at.bottom + 8 + own.height < window.innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - own.height - 6)}px`;
}

function hide() {
  tip?.remove();
  owner?.removeAttribute("aria-describedby");
  tip = owner = null;
}

export function tips() {
  const on = (event) => {
    const target = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    if (target && target !== owner) show(target);
    else if (!target) hide();
  };
  document.addEventListener("pointerover", on);
  document.addEventListener("focusin", on);
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
}
