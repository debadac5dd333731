"use strict";
// The charts of the page, each with its tooltip and the table behind it.

const TOLD = 16; // parties in a tooltip
const COLUMNS = 12; // parties in a table
const CALM = ["group2", "group1", "group3", "little"]; // colours that accuse nobody

function showLines() {
  const rounds = run.rounds;
  const zoom = rounds.length > 150;
  const [share, noise] = [
    (round, party) => run.share(round, party),
    positive((round, party) => run.noise(round, party)),
  ];
  charts.weights.when(() =>
    charts.weights.draw([...partySeries(run, judgements, share, state.party), equalLine()], {
      rounds,
      zoom,
      labels: true,
      tooltip: (x) => partyTip(x, share, times),
    }),
  );
  charts.noise.when(() =>
    charts.noise.draw([...partySeries(run, judgements, noise, state.party), ...intervalLines()], {
      rounds,
      zoom,
      log: true,
      labels: true,
      tooltip: (x) => partyTip(x, noise, noiseText),
    }),
  );
  const standing = judgements.filter((one) => one.cause).length;
  $("drawn").textContent = standing > MOST ? ` Of the ${standing} that stand out, ${MOST} are drawn.` : "";
  overParties("weights", share, times);
  overParties("noise", noise, noiseText);
}

// The interval for the noise of the picked party.
function intervalLines() {
  const { party } = state;
  if (party === null) return [];
  const color = colour(colours(judgements).get(party) ?? "picked");
  return [-1, 1].map((sign) => ({
    id: sign < 0 ? "low" : "high",
    data: points(
      run.rounds,
      positive((round) => run.noise(round, party) * Math.exp(sign * run.doubt(round, party))),
    ),
    silent: true,
    lineStyle: { color, type: "dotted", width: 1.5 },
    z: 4,
  }));
}

function equalLine() {
  const ends = run.rounds.length ? axisEnds(run.rounds) : [];
  const lineStyle = { color: colour("muted"), type: "dotted", width: 1.5 };
  return { id: "equal", data: ends.map((number) => [number, 1]), silent: true, lineStyle };
}

// Sorted by group, then the most suspicious first.
function matrixOrder(round) {
  const rank = new Map(judgements.map((one, k) => [one.party, k]));
  const group = (party) => (Number.isNaN(round.group[party]) ? Infinity : round.group[party]);
  const last = (party) => rank.get(party) ?? Infinity;
  return round.members
    .map((party, member) => ({ party, member }))
    .sort(({ party: a }, { party: b }) => (group(a) === group(b) ? last(a) - last(b) : group(a) - group(b)))
    .map(({ member }) => member);
}

function showMatrix() {
  const place = run.correlated(state.place);
  const section = $("correlation");
  section.hidden = place < 0;
  if (place < 0) return;
  const round = run.rounds[place];
  const order = matrixOrder(round).slice(0, MATRIX);
  const all = round.members.length;
  section.querySelector("p").textContent =
    `Correlation of the parties' errors in round ${round.number}` +
    (place === state.place ? "." : ", the last before the picked one of which it was kept.") +
    (all > MATRIX ? ` ${MATRIX} of ${all} parties, groups and the most suspicious first.` : "");
  const look = JSON.stringify([round.number, order, state.party]);
  if (look === state.drawn.matrix) return;
  state.drawn.matrix = look;
  matrix.when(() => drawMatrix(matrix, run, round, order, state.party));
  lazily(section, () => correlationTable(round));
}

function correlationTable(round) {
  const value = correlations(round);
  const pairs = [];
  round.members.forEach((a, k) =>
    round.members.slice(k + 1).forEach((b, l) => pairs.push([a, b, value(k, k + 1 + l)])),
  );
  pairs.sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]));
  return [
    [
      { title: "Party", left: true, sort: ([a]) => run.names[a], cell: ([a]) => run.names[a] },
      { title: "and", left: true, sort: ([, b]) => run.names[b], cell: ([, b]) => run.names[b] },
      {
        title: "Correlation",
        down: true,
        sort: ([, , c]) => c,
        cell: ([, , c]) => (Number.isNaN(c) ? "–" : c.toFixed(2)),
      },
    ],
    pairs,
    "Pairs of parties, the most correlated first",
  ];
}

// Charts of the run as a whole.
function showRunCharts() {
  const steps = [...new Set(run.rounds.flatMap((round) => Object.keys(round.seconds)))];
  const voices = (round, name) => (name === "usable" ? round.members.length : round.effective);
  const accuracy = (y) => (Number.isNaN(y) ? "–" : y.toFixed(3));
  plain("accuracy", ["accuracy"], (round) => round.accuracy, accuracy);
  plain("effective", ["effective", "usable"], voices, brief);
  plain("seconds", steps, (round, step) => round.seconds[step] ?? NaN, duration, true);
  for (const chart of Object.values(charts)) chart.mark(run.rounds[state.place]?.number);
}

function plain(id, names, value, format, log = false) {
  const found = run.rounds.some((round) => names.some((name) => !Number.isNaN(value(round, name))));
  $(id).hidden = !found;
  if (!found) return;
  const look = names.map((name, k) => ({
    name,
    colour: name === "usable" ? "other" : CALM[k % CALM.length],
  }));
  const series = look.map((one) => ({
    id: one.name,
    data: points(
      run.rounds,
      log ? positive((round) => value(round, one.name)) : (round) => value(round, one.name),
    ),
    lineStyle: { color: colour(one.colour), width: 2 },
  }));
  const tooltip = (x) => {
    const round = nearest(x);
    return tip(
      round,
      look.map((one) => entry(one.colour, one.name, format(value(round, one.name)))),
    );
  };
  charts[id].when(() => charts[id].draw(series, { rounds: run.rounds, log, tooltip, format }));
  const legend = look.map((one) =>
    element("span", {}, element("i", { class: `dot ${one.colour}` }), one.name),
  );
  $(id)
    .querySelector(".legend")
    ?.replaceChildren(...legend);
  lazily($(id), () => [
    [
      byRound,
      ...names.map((name) => ({
        title: name,
        sort: (round) => value(round, name),
        cell: (round) => format(value(round, name)),
      })),
    ],
    run.rounds,
    charts[id].label,
  ]);
}

function partyTip(number, value, format) {
  const round = nearest(number);
  const named = colours(judgements);
  const rows = judgements
    .map(({ party }) => [party, value(round, party)])
    .filter(([, y]) => !Number.isNaN(y));
  const telling = ([party]) => named.has(party) || party === state.party || rows.length <= TOLD;
  const first = rows.filter(telling).slice(0, TOLD);
  const entries = first.map(([party, y]) =>
    entry(named.get(party) ?? "other", run.names[party], format(y, round, party)),
  );
  const left = rows.length - first.length;
  if (left)
    entries.push(
      entry("other", `${left} more; the median of all`, format(median(rows.map(([, y]) => y)), round)),
    );
  return tip(round, entries);
}

function entry(colour, name, value) {
  return element("div", {}, element("i", { class: `dot ${colour}` }), name, element("b", {}, value));
}

function tip(round, entries) {
  return element("div", {}, element("h3", {}, `Round ${round.number}`), ...entries);
}

function nearest(number) {
  return run.rounds.reduce((best, round) =>
    Math.abs(round.number - number) < Math.abs(best.number - number) ? round : best,
  );
}

function overParties(id, value, format) {
  const parties = judgements.map((one) => one.party);
  const shown = [...new Set(state.party === null ? parties : [state.party, ...parties])].slice(0, COLUMNS);
  const left = parties.length - shown.length;
  lazily($(id), () => [
    [
      byRound,
      ...shown.map((party) => ({
        title: run.names[party],
        sort: (round) => value(round, party),
        cell: (round) => format(value(round, party), round, party),
      })),
    ],
    run.rounds,
    left > 0 ? `The ${COLUMNS} most suspicious parties; pick a party to have it first` : "By round and party",
  ]);
}

// The table behind a chart is made only when it is opened.
function lazily(section, make) {
  const details = section.querySelector("details");
  const fill = () => {
    if (!details.open) return;
    const holder =
      details.querySelector("div") ?? details.appendChild(element("div", { class: "scroll", tabindex: "0" }));
    const [columns, rows, caption] = make();
    table(holder, columns, rows, remembered(section.id), { perPage: 50, caption });
  };
  details.ontoggle = fill;
  fill();
}

function positive(value) {
  return (...of) => {
    const found = value(...of);
    return found > 0 ? found : NaN;
  };
}
