// Light or dark: as the system says, unless the reader has said otherwise before.

const THEME = "encke-report-theme";

// Storage may be forbidden, for a page opened from a file for instance; then it is not remembered.
function remembered() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}

function remember(theme) {
  try {
    if (theme === "system") localStorage.removeItem(THEME);
    else localStorage.setItem(THEME, theme);
  } catch {
    // Nothing to do: the switch still works for this page.
  }
}

function setUpTheme() {
  const switcher = document.querySelector(".themes");
  switcher.hidden = false;
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  const before = remembered();
  for (const input of switcher.querySelectorAll("input")) {
    input.checked = input.value === (before ?? "system");
    input.addEventListener("change", () => {
      remember(input.value);
      apply(input.value);
    });
  }
  apply(before);
}
