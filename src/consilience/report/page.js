"use strict";
// The page: what is picked, what is shown of it, and how it is moved about.

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
  let best = 0;
  run.rounds.forEach((round, k) => {
    if (Math.abs(round.number - number) < Math.abs(run.rounds[best].number - number)) best = k;
  });
  pickPlace(best);
}

function pickParty(party) {
  state.party = state.party === party ? null : party;
  showParty();
}

function partyButton(party) {
  const onclick = (event) => {
    event.stopPropagation();
    pickParty(party);
  };
  const pressed = String(state.party === party);
  const button = element("button", { type: "button", class: "name", "aria-pressed": pressed, onclick }, run.names[party]);
  button.dataset.key = `party ${party}`;
  return button;
}

// Everything; for the first time, when rounds were added, and when the colours change.
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
  const span = first ? `${plural(run.rounds.length, "round")}, ${CLOCK.formatRange(first.time, last.time)}` : "no round yet";
  $("run").replaceChildren(element("strong", {}, given.title), ` · ${last?.method ?? "–"} · ${span}`);
  document.title = `Whom to trust: ${given.title}`;
  $("round").max = Math.max(0, run.rounds.length - 1);
  const order = run.names.map((name, party) => party).sort((a, b) => run.names[a].localeCompare(run.names[b], undefined, { numeric: true }));
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
  // Lines change with who stands out and who is picked, not with every round.
  const look = JSON.stringify([state.party, judgements.length, [...colours(judgements)].sort()]);
  if (look !== state.drawn.lines) showLines();
  state.drawn.lines = look;
}

function showFindings() {
  $("headline").textContent = headline(run, state.place, judgements);
  const said = clusters(judgements).map((cluster) => {
    const name = colours(judgements).get(cluster.members[0].party);
    const words = sentence(run, cluster).map((word) => (typeof word === "string" ? word : partyButton(word.party)));
    return element("li", { class: `cause ${name}` }, ...words);
  });
  $("causes").replaceChildren(...said.slice(0, 6), element("li", { class: "cause other" }, remainder(run, state.place, judgements)));
}

function showTiles(round) {
  const accuracy = run.rounds.slice(0, state.place + 1).findLast((one) => !Number.isNaN(one.accuracy));
  const spent = Object.values(round?.seconds ?? {}).reduce((sum, value) => sum + (value ?? 0), 0);
  const tiles = [
    ["Effective parties", round ? `${brief(round.effective)} of ${round.members.length + round.rejected.size}` : "–"],
    ["Rejected", round ? String(round.rejected.size) : "–"],
    ...(accuracy ? [["Accuracy", accuracy.accuracy.toFixed(3)]] : []),
    ...(spent ? [["Time of the round", duration(spent)]] : []),
    ...Object.entries(round?.metrics ?? {}).map(([name, value]) => [name, brief(value ?? NaN)]),
    ...(round?.note ? [["Note", round.note]] : []),
  ];
  $("tiles").replaceChildren(
    ...tiles.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );
}

function remembered(name) {
  if (!state.tables.has(name)) state.tables.set(name, {});
  return state.tables.get(name);
}

function showParties() {
  const window = Math.min(WINDOW, state.place + 1);
  $("basis").textContent = `Over the last ${plural(window, "round")} up to the picked one. Pick a party to follow it.`;
  const named = colours(judgements);
  const most = Math.max(1.5, ...judgements.map((one) => one.share));
  const columns = [
    {
      title: "Party",
      left: true,
      sort: ({ party }) => run.names[party],
      cell: ({ party }) => {
        const dot = element("i", { class: `dot ${named.get(party) ?? "other"}` });
        return element("span", { class: "who" }, dot, partyButton(party));
      },
    },
    { title: "Heard", sort: (one) => one.share, cell: (one) => bar(one.share, most) },
    { title: "Noise", down: true, sort: (one) => one.noise, cell: (one) => times(one.noise) },
    { title: "Why", left: true, sort: (one) => why(run, one), cell: (one) => element("span", { class: "why" }, why(run, one)) },
  ];
  table($("parties").querySelector(".scroll"), columns, judgements, remembered("parties"), {
    perPage: 50,
    caption: "The parties, with how much they are heard, their noise and what stands out",
    rowClass: ({ party }) => (party === state.party ? "picked" : ""),
    onRow: ({ party }) => pickParty(party),
  });
}

function bar(share, most) {
  const fill = element("i", {});
  fill.style.inlineSize = `${(100 * Math.max(0, share)) / most}%`;
  const track = element("span", { class: "track", "aria-hidden": "true" }, fill);
  track.style.setProperty("--one", `${100 / most}%`);
  return element("span", { class: "bar" }, track, element("span", {}, times(share)));
}

// What was ever said of the picked party, and when.
function showDetail() {
  const { party } = state;
  $("detail").hidden = party === null;
  if (party === null) return;
  const said = new Map();
  run.rounds.forEach((round, place) => {
    // Numbers change from round to round: one line per kind of reason.
    const reason = round.reasons.get(party)?.replace(/\d[\d.e+]*×/g, "…×");
    const text = round.rejected.has(party) ? `rejected: ${round.rejected.get(party)}` : reason;
    if (text) said.set(text, [...(said.get(text) ?? []), place]);
  });
  const round = run.rounds[state.place];
  const now = round.rejected.has(party)
    ? "rejected"
    : `weight ${brief(round.weights[party] ?? NaN)}, noise ${brief(run.noise(round, party))}`;
  const close = element("button", { type: "button", onclick: () => pickParty(party) }, "Let go");
  $("detail").replaceChildren(
    element("h2", {}, run.names[party]),
    element("p", {}, `In round ${round.number}: ${now}${round.reasons.has(party) ? `; ${round.reasons.get(party)}` : ""}. `, close),
    said.size
      ? element("ul", {}, ...[...said].map(([text, places]) => element("li", {}, `Rounds ${spans(run, places)}: ${text}`)))
      : element("p", {}, "Nothing was ever said against it."),
  );
}

function showLines() {
  const rounds = run.rounds;
  const zoom = rounds.length > 150;
  const [share, noise] = [(round, party) => run.share(round, party), positive((round, party) => run.noise(round, party))];
  charts.weights.when(() =>
    charts.weights.draw([...partySeries(run, judgements, share, state.party), equalLine()], {
      rounds, zoom, labels: true, tooltip: (x) => partyTip(x, share, times),
    }),
  );
  charts.noise.when(() =>
    charts.noise.draw(partySeries(run, judgements, noise, state.party), {
      rounds, zoom, log: true, labels: true, tooltip: (x) => partyTip(x, noise, brief),
    }),
  );
  const standing = judgements.filter((one) => one.cause).length;
  $("drawn").textContent = standing > MOST ? ` Of the ${standing} that stand out, ${MOST} are drawn.` : "";
  overParties("weights", share, times);
  overParties("noise", noise, brief);
}

function equalLine() {
  const ends = run.rounds.length ? [run.rounds[0].number, run.rounds.at(-1).number] : [];
  const lineStyle = { color: colour("muted"), type: "dotted", width: 1.5 };
  return { id: "equal", data: ends.map((number) => [number, 1]), silent: true, lineStyle };
}

function positive(value) {
  return (...of) => {
    const found = value(...of);
    return found > 0 ? found : NaN;
  };
}

function showMatrix() {
  const place = run.correlated(state.place);
  const section = $("correlation");
  section.hidden = place < 0;
  if (place < 0) return;
  const round = run.rounds[place];
  const late = place === state.place ? "" : ` (kept of round ${round.number}, the last before)`;
  const all = round.members.length;
  const part = all > MATRIX ? ` ${MATRIX} of ${all} parties, those in groups and the most suspicious first.` : "";
  section.querySelector("p").textContent = `Correlation of the parties' errors in round ${run.rounds[state.place].number}${late}.${part}`;
  // Groups side by side, then the most suspicious first.
  const rank = new Map(judgements.map((one, k) => [one.party, k]));
  const key = (member) => [round.group[round.members[member]] ?? NaN, rank.get(round.members[member]) ?? Infinity];
  const order = round.members.map((party, member) => member).sort((a, b) => {
    const [[groupA, rankA], [groupB, rankB]] = [key(a), key(b)];
    return (Number.isNaN(groupA) ? 1e9 : groupA) - (Number.isNaN(groupB) ? 1e9 : groupB) || rankA - rankB;
  });
  const shown = order.slice(0, MATRIX);
  const look = JSON.stringify([round.number, shown, state.party]);
  if (look === state.drawn.matrix) return;
  state.drawn.matrix = look;
  matrix.when(() => drawMatrix(matrix, run, round, shown, state.party));
  lazily(section, () => correlationTable(section, round));
}

function correlationTable(holder, round) {
  const value = correlations(round);
  const pairs = [];
  round.members.forEach((a, k) => round.members.slice(k + 1).forEach((b, l) => pairs.push([a, b, value(k, k + 1 + l)])));
  pairs.sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]));
  return [
    [
      { title: "Party", left: true, sort: ([a]) => run.names[a], cell: ([a]) => run.names[a] },
      { title: "and", left: true, sort: ([, b]) => run.names[b], cell: ([, b]) => run.names[b] },
      { title: "Correlation", down: true, sort: ([, , c]) => c, cell: ([, , c]) => (Number.isNaN(c) ? "–" : c.toFixed(2)) },
    ],
    pairs,
    "Pairs of parties, the most correlated first",
  ];
}

// The table behind a chart is made when it is opened.
function lazily(section, make) {
  const details = section.querySelector("details");
  const fill = () => {
    if (!details.open) return;
    const holder = details.querySelector("div") ?? details.appendChild(element("div", { class: "scroll", tabindex: "0" }));
    const [columns, rows, caption] = make();
    table(holder, columns, rows, remembered(section.id), { perPage: 50, caption });
  };
  details.ontoggle = fill;
  fill();
}

function overParties(id, value, format) {
  const most = 12;
  const parties = judgements.map((one) => one.party);
  const shown = [...new Set(state.party === null ? parties : [state.party, ...parties])].slice(0, most);
  const left = parties.length - shown.length;
  lazily($(id), () => [
    [
      { title: "Round", down: true, sort: (round) => round.number, cell: (round) => String(round.number) },
      ...shown.map((party) => ({
        title: run.names[party],
        sort: (round) => value(round, party),
        cell: (round) => format(value(round, party)),
      })),
    ],
    run.rounds,
    left > 0 ? `The ${most} most suspicious parties; pick a party to have it first` : "By round and party",
  ]);
}

function partyTip(number, value, format) {
  const round = nearest(number);
  const named = colours(judgements);
  const rows = judgements.map(({ party }) => [party, value(round, party)]).filter(([, y]) => !Number.isNaN(y));
  const first = rows.filter(([party]) => named.has(party) || party === state.party || rows.length <= 16).slice(0, 16);
  const left = rows.length - first.length;
  const lines = first.map(([party, y]) =>
    element("div", {}, element("i", { class: `dot ${named.get(party) ?? "other"}` }), run.names[party], element("b", {}, format(y))),
  );
  if (left) lines.push(element("div", {}, `${left} more, half of them above `, element("b", {}, format(median(rows.map(([, y]) => y))))));
  return element("div", {}, element("h3", {}, `Round ${round.number}`), ...lines);
}

function nearest(number) {
  return run.rounds.reduce((best, round) => (Math.abs(round.number - number) < Math.abs(best.number - number) ? round : best));
}

// Charts of the run as a whole: [id, names of the lines, value(round, name), how to write it].
function showRunCharts() {
  const steps = [...new Set(run.rounds.flatMap((round) => Object.keys(round.seconds)))];
  plain("accuracy", ["accuracy"], (round) => round.accuracy, (y) => y.toFixed(3));
  plain("effective", ["effective", "usable"], (round, name) => (name === "usable" ? round.members.length : round.effective), brief);
  plain("seconds", steps, (round, step) => round.seconds[step] ?? NaN, duration, true);
  for (const chart of Object.values(charts)) chart.mark(run.rounds[state.place]?.number);
}

function plain(id, names, value, format, log = false) {
  const found = run.rounds.some((round) => names.some((name) => !Number.isNaN(value(round, name))));
  $(id).hidden = !found;
  if (!found) return;
  const look = names.map((name, k) => ({ name, colour: name === "usable" ? "other" : `group${k % GROUP_COLOURS}` }));
  const series = look.map((one) => ({
    id: one.name,
    data: points(run.rounds, log ? positive((round) => value(round, one.name)) : (round) => value(round, one.name)),
    lineStyle: { color: colour(one.colour), width: 2 },
  }));
  const tooltip = (x) => {
    const round = nearest(x);
    const lines = look.map((one) =>
      element("div", {}, element("i", { class: `dot ${one.colour}` }), one.name, element("b", {}, format(value(round, one.name)))),
    );
    return element("div", {}, element("h3", {}, `Round ${round.number}`), ...lines);
  };
  charts[id].when(() => charts[id].draw(series, { rounds: run.rounds, log, tooltip, format }));
  const legend = look.map((one) => element("span", {}, element("i", { class: `dot ${one.colour}` }), one.name));
  if (names.length > 1) $(id).querySelector(".legend").replaceChildren(...legend);
  lazily($(id), () => [
    [
      { title: "Round", down: true, sort: (round) => round.number, cell: (round) => String(round.number) },
      ...names.map((name) => ({ title: name, sort: (round) => value(round, name), cell: (round) => format(value(round, name)) })),
    ],
    run.rounds,
    charts[id].label,
  ]);
}

function showRejected() {
  const found = new Map();
  run.rounds.forEach((round, place) =>
    round.rejected.forEach((reason, party) => {
      const key = JSON.stringify([party, reason]);
      if (!found.has(key)) found.set(key, { party, reason, places: [] });
      found.get(key).places.push(place);
    }),
  );
  $("rejected").hidden = !found.size;
  const columns = [
    { title: "Party", left: true, sort: (one) => run.names[one.party], cell: (one) => partyButton(one.party) },
    { title: "Times", down: true, sort: (one) => one.places.length, cell: (one) => String(one.places.length) },
    { title: "Rounds", left: true, cell: (one) => element("span", { class: "why" }, spans(run, one.places)) },
    { title: "Why", left: true, sort: (one) => one.reason, cell: (one) => element("span", { class: "why" }, one.reason) },
  ];
  const rows = [...found.values()].sort((a, b) => b.places.length - a.places.length);
  table($("rejected").querySelector(".scroll"), columns, rows, remembered("rejected"), { perPage: 50, caption: "Rejected updates" });
}

function showNotes() {
  const rows = run.rounds.filter((round) => round.note);
  $("notes").hidden = !rows.length;
  const columns = [
    { title: "Round", down: true, sort: (round) => round.number, cell: (round) => String(round.number) },
    { title: "Note", left: true, cell: (round) => element("span", { class: "why" }, round.note) },
  ];
  table($("notes").querySelector(".scroll"), columns, rows, remembered("notes"), { perPage: 50, caption: "Notes" });
}

function duration(seconds) {
  if (Number.isNaN(seconds)) return "–";
  if (seconds < 1) return `${brief(seconds * 1000)} ms`;
  return seconds < 120 ? `${brief(seconds)} s` : `${brief(seconds / 60)} min`;
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
    document.body.classList.add("lost"); // the server is gone, or the record damaged: what is here stays
  }
  setTimeout(() => follow(place), 1000);
}

let asked = 0;
$("round").addEventListener("input", () => {
  cancelAnimationFrame(asked); // one drawing for all that is asked within a frame
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
addEventListener("beforeprint", () => [matrix, ...Object.values(charts)].forEach((chart) => chart.look(true)));
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
prefersDark.addEventListener("change", () => setTheme(prefersDark.matches));
if (given.live !== null) {
  document.body.classList.add("live");
  follow(given.live);
}
setTheme(prefersDark.matches);
