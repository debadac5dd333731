"use strict";
// The page: what is picked, what is shown, and how to move about.

const $ = (id) => document.getElementById(id);
const given = JSON.parse($("data").textContent);
const run = new Run(given.texts);
given.rounds.forEach((line) => run.add(line));

const state = {
  place: run.rounds.length - 1, // of the picked round
  party: null,
  drawn: { matrix: null },
  tables: new Map(), // by the table's name: how it is sorted, which page
};
let judgements = [];
const CLOCK = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

const pick = { onRound: pickNumber, onParty: (party) => Number.isInteger(party) && pickParty(party) };
const charts = {
  weights: new LineChart($("weights"), "How much each party is heard, over rounds", pick),
  noise: new LineChart($("noise"), "Noise of each party, over rounds", pick),
  accuracy: new LineChart($("accuracy"), "Accuracy over rounds", pick),
  effective: new LineChart($("effective"), "Effective number of parties over rounds", pick),
  seconds: new LineChart($("seconds"), "Seconds of each step, over rounds", pick),
};
const matrix = new Chart($("correlation"), "Correlation of the parties' errors");

function pickPlace(place) {
  const next = Math.max(0, Math.min(run.rounds.length - 1, place));
  if (next === state.place) return;
  state.place = next;
  showRound();
}

function pickNumber(number) {
  pickPlace(run.rounds.indexOf(nearest(number)));
}

function pickParty(party) {
  state.party = state.party === party ? null : party;
  showParty();
}

// Draws everything: at first, when rounds were added, and when the colours change.
function showAll() {
  state.drawn.matrix = null;
  state.drawn.lines = null;
  showControls();
  showRound();
  showRejected();
  showNotes();
  showRunCharts();
}

function showControls() {
  const [first, last] = [run.rounds[0], run.rounds.at(-1)];
  const span = first
    ? `${plural(run.rounds.length, "round")}, ${CLOCK.formatRange(first.time, last.time)}`
    : "no round yet";
  $("run").replaceChildren(element("strong", {}, given.title), ` · ${last?.method ?? "–"} · ${span}`);
  document.title = `Whom to trust: ${given.title}`;
  $("round").max = Math.max(0, run.rounds.length - 1);
  const order = run.names
    .map((name, party) => party)
    .sort((a, b) => run.names[a].localeCompare(run.names[b], undefined, { numeric: true }));
  $("party").replaceChildren(
    element("option", { value: "" }, "any"),
    ...order.map((party) => element("option", { value: String(party) }, run.names[party])),
  );
}

function showRound() {
  judgements = judge(run, state.place);
  const round = run.rounds[state.place];
  $("round").value = state.place;
  $("round").setAttribute("aria-valuetext", round ? `round ${round.number}` : "none");
  $("shown").textContent = round ? `Round ${round.number} of ${run.rounds.at(-1).number}` : "No round";
  showFindings();
  showTiles(round);
  showParty();
  for (const chart of Object.values(charts)) chart.mark(round?.number);
}

function showParty() {
  $("party").value = state.party === null ? "" : String(state.party);
  for (const button of document.querySelectorAll("#findings .name"))
    button.setAttribute("aria-pressed", String(button.dataset.key === `party ${state.party}`));
  showParties();
  showDetail();
  showMatrix();
  // The lines depend on who stands out and who is picked, not on the round.
  const look = JSON.stringify([state.party, judgements.length, [...colours(judgements)].sort()]);
  if (look !== state.drawn.lines) showLines();
  state.drawn.lines = look;
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = dark ? "Light" : "Dark";
  showAll();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && state.party !== null) return void pickParty(state.party);
  const kind = event.target.tagName;
  if (kind === "INPUT" || kind === "SELECT" || event.target.closest(".scroll")) return;
  const last = run.rounds.length - 1;
  const place = { ArrowLeft: state.place - 1, ArrowRight: state.place + 1, Home: 0, End: last }[event.key];
  if (place === undefined) return;
  event.preventDefault();
  pickPlace(place);
}

// Ask for what was added to the record; follow the last round if it was the picked one.
async function follow(place) {
  try {
    const answer = await fetch(`rounds?from=${place}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(`the server says ${answer.status} ${answer.statusText}`);
    const news = await answer.json();
    if (news === null) return void location.reload();
    if (news.rounds.length) {
      const following = state.place === run.rounds.length - 1;
      news.rounds.forEach((line) => run.add(line));
      if (following) state.place = run.rounds.length - 1;
      showAll();
    }
    place = news.next;
    document.body.classList.remove("lost");
  } catch (error) {
    document.body.classList.add("lost"); // the server is gone, or the record damaged: keep what is here
  }
  setTimeout(() => follow(place), 1000);
}

let asked = 0;
$("round").addEventListener("input", () => {
  cancelAnimationFrame(asked); // draw once per frame
  asked = requestAnimationFrame(() => pickPlace(Number($("round").value)));
});
$("earlier").addEventListener("click", () => pickPlace(state.place - 1));
$("later").addEventListener("click", () => pickPlace(state.place + 1));
$("party").addEventListener("change", () => {
  state.party = $("party").value === "" ? null : Number($("party").value);
  showParty();
});
$("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
document.addEventListener("keydown", onKey);
// On paper: dark on light, every chart drawn, every row of every table.
addEventListener("beforeprint", () => {
  paper.theme = document.documentElement.dataset.theme;
  paper.on = true;
  setTheme(false);
  for (const chart of [matrix, ...Object.values(charts)]) {
    chart.print(paper.width);
  }
});
addEventListener("afterprint", () => {
  paper.on = false;
  setTheme(paper.theme === "dark");
  for (const chart of [matrix, ...Object.values(charts)]) chart.unprint();
});
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
prefersDark.addEventListener("change", () => setTheme(prefersDark.matches));
if (given.live !== null) {
  document.body.classList.add("live");
  follow(given.live);
}
setTheme(prefersDark.matches);
