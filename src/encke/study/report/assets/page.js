// Puts the page together: reads the embedded data, keeps the filter, draws.

const results = JSON.parse(document.getElementById("study-results").textContent);
const view = JSON.parse(document.getElementById("study-view").textContent);
const rows = results.rows;
const DETAILS = ["layers", "timeline", "gradient_error", "error_histogram"];
const state = { model: "", data: "", hidden: new Set(), memory: "stored", course: "train_loss", training: null };
const filter = document.getElementById("filter");
const training = document.querySelector("select[name=training]");

function shownNow() {
  const scenes = view.scenes.map((scene, i) => [scene, i]).filter(([scene]) =>
    (!state.model || scene.model === state.model) && (!state.data || scene.data === state.data));
  const places = scenes.map(([, i]) => i);
  const groups = view.groups.filter((g) => places.includes(g.scene) && !state.hidden.has(g.policy) && g.rows.length);
  return { view, rows, state, groups, scenes: places };
}

function draw() {
  hideTooltip();
  const context = shownNow();
  const trainings = context.groups.reduce((sum, g) => sum + g.rows.length, 0);
  document.getElementById("shown").textContent =
    `Shown: ${counted(context.scenes.length, "comparison")} of ${view.scenes.length}, ${counted(trainings, "training")}.`;
  drawFront(document.getElementById("front"), context);
  drawCurves(document.getElementById("curves"), context);
  drawTime(document.getElementById("time"), context);
  drawInside(context);
}

function hasDetails(row) {
  return DETAILS.some((key) => row[key] !== null && row[key] !== undefined);
}

// Trainings whose details are embedded: those of the best settings first among equals.
function offerTrainings(groups) {
  const offered = groups.flatMap((g) => g.rows.filter((i) => hasDetails(rows[i])).map((i) => ({ g, i })));
  training.replaceChildren(...offered.map(({ g, i }) =>
    html("option", { value: i }, `${view.policies[g.policy].label}, ${view.scenes[g.scene].label}, seed ${rows[i].seed}`)));
  const full = ({ i }) => Boolean(rows[i].layers);
  const chosen = offered.find(({ i }) => i === state.training)
    ?? offered.find((o) => o.g.policy === view.recommended && full(o))
    ?? offered.find((o) => o.g.best && full(o)) ?? offered.find(full) ?? offered[0];
  if (chosen) training.value = chosen.i;
  return chosen;
}

function drawInside({ groups }) {
  const chosen = offerTrainings(groups);
  document.getElementById("inside-none").hidden = Boolean(chosen);
  training.closest("p").hidden = !chosen;
  const row = chosen ? rows[chosen.i] : null;
  const policy = chosen ? view.policies[chosen.g.policy] : { label: "", kind: "", variant: 0 };
  const gradients = Array.isArray(row?.gradient_error) ? row.gradient_error : [];
  const context = { row, policy, gradients };
  drawTimeline(document.getElementById("timeline"), context);
  drawHistogram(document.getElementById("histogram"), context);
  drawLayers(document.getElementById("layers"), context);
  drawGradients(document.getElementById("gradients"), context);
}

function offer(select, names, all) {
  const distinct = [...new Set(names)];
  select.append(html("option", { value: "" }, all), ...distinct.map((name) => html("option", { value: name }, name)));
  select.closest("label").hidden = distinct.length < 2;
}

function setUpFilter() {
  offer(filter.elements.model, view.scenes.map((s) => s.model), "all networks");
  offer(filter.elements.data, view.scenes.map((s) => s.data), "all data");
  const chips = filter.querySelector(".chips");
  view.policies.forEach((policy, i) => {
    const box = html("input", { type: "checkbox", value: i, checked: true });
    chips.append(html("label", { class: "chip" }, box, sample(policy), html("span", {}, policy.label)));
  });
  const boxes = [...chips.querySelectorAll("input")];
  const read = () => {
    state.model = filter.elements.model.value;
    state.data = filter.elements.data.value;
    state.hidden = new Set(boxes.filter((box) => !box.checked).map((box) => Number(box.value)));
    draw();
  };
  filter.addEventListener("change", read);
  filter.addEventListener("submit", (event) => event.preventDefault());
  for (const [name, checked] of [["all", true], ["none", false]]) {
    filter.elements[name].addEventListener("click", () => {
      for (const box of boxes) box.checked = checked;
      read();
    });
  }
}

function setUpSwitches() {
  for (const key of ["memory", "course"]) {
    for (const input of document.querySelectorAll(`input[name=${key}]`)) {
      input.addEventListener("change", () => {
        state[key] = input.value;
        draw();
      });
    }
  }
  training.addEventListener("change", () => {
    state.training = Number(training.value);
    drawInside(shownNow());
  });
}

function setUpDownload() {
  const button = document.getElementById("download");
  button.hidden = false;
  button.addEventListener("click", () => {
    const blob = new Blob([JSON.stringify(results)], { type: "application/json" });
    const name = String(results.study?.name ?? "study").replace(/[^\w.-]+/g, "-");
    const link = html("a", { href: URL.createObjectURL(blob), download: `${name || "study"}-results.json` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}

setUpTheme();
setUpDownload();
if (view.groups.some((g) => g.rows.length)) {
  document.getElementById("pictures").hidden = false;
  setUpFilter();
  setUpSwitches();
  draw();
  for (const [name, printing] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(name, () => {
      document.documentElement.classList.toggle("printing", printing);
      draw();
    });
  }
  let width = window.innerWidth;
  let waiting = 0;
  window.addEventListener("resize", () => {
    // A phone's address bar changes the height only.
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(draw);
  });
}
