// Follow Airflow's own choice of colours (it keeps it in this origin's storage), else the system's.
const system = matchMedia("(prefers-color-scheme: dark)");

function apply() {
  let choice = null;
  try {
    choice = localStorage.getItem("theme");
  } catch { /* storage may be closed to a framed page */ }
  const dark = choice === "dark" || (choice !== "light" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

apply();
system.addEventListener("change", apply);
addEventListener("storage", apply);
