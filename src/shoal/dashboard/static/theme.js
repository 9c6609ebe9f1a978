// Light or dark: as the system says, or as chosen here. Loaded in the head and not as a module, so that nothing flashes.
(() => {
  const KEY = "shoal-theme";
  let chosen = null;
  try {
    chosen = localStorage.getItem(KEY);
  } catch {
    // Storage may be forbidden: the system's choice holds.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;

  const dark = () => {
    const theme = document.documentElement.dataset.theme;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const tell = () => {
    const button = document.getElementById("theme");
    if (!button) return;
    button.textContent = dark() ? "☀ Light" : "☾ Dark";
    button.setAttribute("aria-label", dark() ? "Change to light colours" : "Change to dark colours");
    button.hidden = false;
  };
  const changed = () => {
    tell();
    document.dispatchEvent(new CustomEvent("shoal:theme"));
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  document.addEventListener("DOMContentLoaded", () => {
    tell();
    document.getElementById("theme")?.addEventListener("click", () => {
      const theme = dark() ? "light" : "dark";
      document.documentElement.dataset.theme = theme;
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // It holds for this page, then.
      }
      changed();
    });
  });
})();
