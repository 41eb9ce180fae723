/** The chosen theme, before the first paint: a script of its own, as the policy allows none inside the page. */

{
  let theme = "auto";
  try {
    theme = localStorage.getItem("divvy-theme") || "auto";
  } catch {
    // A browser without storage follows the system.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
