"use strict";
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const one = (selector, within = document) => within.querySelector(selector);

// Colours: as the system, light, dark.
const themes = ["auto", "light", "dark"];
const themeButton = one("#theme");
function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  themeButton.textContent = theme;
  themeButton.ariaLabel = `Colours: ${theme === "auto" ? "as the system" : theme}`;
}
let theme = "auto";
try { theme = localStorage.getItem("paren-report-theme") ?? "auto"; } catch { /* a page may be refused storage */ }
setTheme(themes.includes(theme) ? theme : "auto");
themeButton.addEventListener("click", () => {
  const next = themes[(themes.indexOf(themeButton.textContent) + 1) % themes.length];
  setTheme(next);
  try { localStorage.setItem("paren-report-theme", next); } catch { /* then it lasts as long as the page */ }
});

// Tables: a click on a head sorts, a second one turns the order round. Empty cells, and what is no number, stay last.
const keyOf = (cell) => {
  if (cell.dataset.v === "nan") return "";
  const number = Number(cell.dataset.v?.replace(/inf$/, "Infinity") ?? NaN);
  return Number.isNaN(number) ? cell.textContent.trim() : number;
};
function compare(left, right) {
  if (typeof left === "number" && typeof right === "number") return left - right;
  if (typeof left !== typeof right) return typeof left === "number" ? -1 : 1;
  return left.localeCompare(right, "en", { numeric: true });
}
for (const table of all("table.sortable")) {
  const heads = all("thead th", table);
  heads.forEach((head, column) => {
    const cells = all(`tbody tr > :nth-child(${column + 1})`, table).filter((cell) => cell.textContent);
    if (cells.length && cells.every((cell) => cell.matches(".number"))) head.classList.add("number");
    one("button", head).addEventListener("click", () => {
      const down = head.ariaSort === "ascending";
      heads.forEach((each) => { each.ariaSort = "none"; });
      head.ariaSort = down ? "descending" : "ascending";
      const body = one("tbody", table);
      const rows = [...body.rows].map((row) => ({ row, key: keyOf(row.cells[column]) }));
      const order = (a, b) => (a.key === "" || b.key === "" ? (a.key === "") - (b.key === "") : down ? compare(b.key, a.key) : compare(a.key, b.key));
      body.append(...rows.sort(order).map((each) => each.row));
    });
  });
}

// The filter: what belongs to a job that lacks one of the words is not shown, anywhere on the page.
const jobs = all("#details .job");
const filter = one("#filter");
filter?.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = jobs.map((job) => {
    const row = one(`#jobs tr[data-j="${job.dataset.j}"]`);
    const text = `${one("summary", job).textContent} ${row?.textContent ?? ""} ${one("a", row)?.title ?? ""}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  for (const element of all("[data-j]")) element.classList.toggle("off", !kept[element.dataset.j]);
  one("#shown").textContent = words.length ? `${kept.filter(Boolean).length} of ${jobs.length}` : "";
});

// Links to a job open its details.
function openTarget() {
  const target = location.hash.startsWith("#job-") && document.getElementById(location.hash.slice(1));
  if (target) target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();

// The section in view is marked in the list of sections.
const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    links.forEach((link) => link.classList.toggle("here", link === links.get(entry.target.id)));
  }
}, { rootMargin: "-15% 0px -75%" });
all("main > section").forEach((section) => seen.observe(section));

// What is under the pointer, in words.
const tip = one("#tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${y - height - 12 > 0 ? y - height - 12 : y + 18}px`;
}
const hideTip = () => { tip.hidden = true; };
addEventListener("scroll", hideTip, true);
document.addEventListener("pointerover", (event) => {
  const told = event.target.closest?.("[data-tip]");
  if (told) showTip(told.dataset.tip, event.clientX, event.clientY);
  else if (!event.target.closest?.(".lines")) hideTip();
});

// Curves: the nearest point is told, and its job is brought out in all charts.
const nameOf = (job) => one("summary b", jobs[job])?.textContent ?? "";
const points = new WeakMap();
function pointsOf(line) {
  if (!points.has(line)) {
    const places = line.getAttribute("d").slice(1).split("L").map((pair) => pair.split(" ").map(Number));
    points.set(line, { places, steps: line.dataset.s.split(" "), values: line.dataset.v.split(" ") });
  }
  return points.get(line);
}
const curves = one("#curves");
const marks = curves ? all(".line, .point", curves) : [];
if (curves) curves.classList.add(jobs.length > 40 ? "crowd" : jobs.length > 8 ? "many" : "few");
const pinned = new Set();
function light(job) {
  const lit = job !== undefined ? new Set([String(job)]) : pinned;
  curves.classList.toggle("lit", lit.size > 0);
  for (const line of marks) line.classList.toggle("hot", lit.has(line.dataset.j));
}
const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
dot.setAttribute("class", "dot");
dot.setAttribute("r", 4);
for (const chart of all(".lines")) {
  let last;
  chart.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    let best = { distance: 900 };
    for (const line of all(".line:not(.off)", chart)) {
      if (pinned.size && !pinned.has(line.dataset.j)) continue;
      const { places } = pointsOf(line);
      places.forEach(([x, y], index) => {
        const distance = (x - at.x) ** 2 + (y - at.y) ** 2 / 4;
        if (distance < best.distance) best = { distance, line, index, x, y };
      });
    }
    if (!best.line) { leave(); return; }
    const { steps, values } = pointsOf(best.line);
    dot.setAttribute("cx", best.x);
    dot.setAttribute("cy", best.y);
    dot.style.cssText = best.line.style.cssText;
    chart.append(dot);
    const name = jobs.length > 1 ? `${nameOf(best.line.dataset.j)}\n` : "";
    showTip(`${name}step ${Number(steps[best.index]).toLocaleString("en")}: ${values[best.index]}`, event.clientX, event.clientY);
    if (last !== best.line && jobs.length > 1) light(best.line.dataset.j);
    last = best.line;
  });
  function leave() { last = undefined; dot.remove(); hideTip(); light(); }
  chart.addEventListener("pointerleave", leave);
}

// Legends: entries can be held down, which dims all the rest.
for (const legend of all(".legend:not(.groups)")) {
  const of = JSON.parse(legend.dataset.of);
  const entries = all("button", legend);
  for (const entry of entries) {
    entry.addEventListener("click", () => {
      entry.ariaPressed = String(entry.ariaPressed !== "true");
      pinned.clear();
      const held = new Set(entries.filter((each) => each.ariaPressed === "true").map((each) => each.dataset.c));
      of.forEach((group, job) => { if (held.has(String(group))) pinned.add(String(job)); });
      light();
    });
  }
}
one("#colour-by")?.addEventListener("change", (event) => {
  all(".legend:not(.groups)").forEach((legend, number) => {
    legend.hidden = number !== event.target.selectedIndex;
    all("button", legend).forEach((entry) => { entry.ariaPressed = "false"; });
    if (legend.hidden) return;
    const of = JSON.parse(legend.dataset.of);
    const colours = JSON.parse(legend.dataset.colours);
    for (const line of marks) line.style.setProperty("--k", `var(${colours[of[line.dataset.j]]})`);
  });
  pinned.clear();
  light();
});
for (const sweep of all(".sweep")) {
  const entries = all(".groups button", sweep);
  for (const entry of entries) {
    entry.addEventListener("click", () => {
      entry.ariaPressed = String(entry.ariaPressed !== "true");
      const held = new Set(entries.filter((each) => each.ariaPressed === "true").map((each) => each.dataset.g));
      sweep.classList.toggle("lit", held.size > 0);
      for (const group of all("g", sweep)) group.classList.toggle("hot", held.has(group.dataset.g));
    });
  }
}

// Figures: a click shows one large.
const large = one("#large");
for (const button of all(".enlarge")) {
  button.addEventListener("click", () => {
    const image = one("img", button);
    one("img", large).src = image.src;
    one("img", large).alt = image.alt;
    one("p", large).textContent = image.alt;
    large.showModal();
  });
}
large.addEventListener("click", (event) => { if (event.target.tagName !== "IMG") large.close(); });
