"use strict";
// The texts of the page: findings, figures, and the tables of parties, rejections and notes.

const byRound = {
  title: "Round",
  down: true,
  sort: (round) => round.number,
  cell: (round) => String(round.number),
};

function partyButton(party) {
  const onclick = (event) => {
    event.stopPropagation();
    pickParty(party);
  };
  const pressed = String(state.party === party);
  const button = element(
    "button",
    { type: "button", class: "name", "aria-pressed": pressed, onclick },
    run.names[party],
  );
  button.dataset.key = `party ${party}`;
  return button;
}

function showFindings() {
  $("headline").textContent = headline(run, state.place, judgements);
  const said = clusters(judgements).map((cluster) => {
    const name = colours(judgements).get(cluster.members[0].party);
    const words = sentence(run, cluster).map((word) =>
      typeof word === "string" ? word : partyButton(word.party),
    );
    return element("li", { class: `cause ${name}` }, ...words);
  });
  $("causes").replaceChildren(
    ...said.slice(0, 6),
    ...(run.rounds[state.place]?.caveats ?? []).map((caveat) =>
      element("li", { class: "cause little" }, `${caveat.slice(0, 1).toUpperCase()}${caveat.slice(1)}.`),
    ),
    element("li", { class: "cause other" }, remainder(run, state.place, judgements)),
  );
}

function showTiles(round) {
  const accuracy = run.rounds.slice(0, state.place + 1).findLast((one) => !Number.isNaN(one.accuracy));
  const spent = Object.values(round?.seconds ?? {}).reduce((sum, value) => sum + (value ?? 0), 0);
  const tiles = [
    [
      "Effective parties",
      round ? `${brief(round.effective)} of ${round.members.length + round.rejected.size}` : "–",
    ],
    ["Rejected", round ? String(round.rejected.size) : "–"],
    ...(round?.center ? [["Weight of the centre", `${(100 * round.center).toFixed(1)} %`]] : []),
    ...(accuracy ? [["Accuracy", accuracy.accuracy.toFixed(3)]] : []),
    ...(spent ? [["Time of the round", duration(spent)]] : []),
    ...Object.entries(round?.metrics ?? {}).map(([name, value]) => [name, brief(value ?? NaN)]),
    ...(round?.note ? [["Note", round.note]] : []),
  ];
  $("tiles").replaceChildren(
    ...tiles.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );
}

function showParties() {
  const window = Math.min(WINDOW, state.place + 1);
  $("basis").textContent =
    `Over the last ${plural(window, "round")} up to the picked one. Pick a party to follow it.` +
    (judgements.some((one) => !Number.isNaN(one.doubt)) ? " In brackets: 95 % intervals." : "");
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
    { title: "Noise", down: true, sort: (one) => one.noise, cell: noiseCell },
    {
      title: "Why",
      left: true,
      sort: (one) => why(one),
      cell: (one) => element("span", { class: "why" }, why(one)),
    },
  ];
  table($("parties").querySelector(".scroll"), columns, judgements, remembered("parties"), {
    perPage: 50,
    caption: "The parties, with how much they are heard, their noise and what stands out",
    rowClass: ({ party }) => (party === state.party ? "picked" : ""),
    onRow: ({ party }) => pickParty(party),
  });
}

function noiseCell({ noise, doubt }) {
  const [, low, high] = interval(noise, doubt) ?? [];
  const ends = low ? [" ", element("span", { class: "interval" }, `(${low}–${high})`)] : [];
  return element("span", {}, times(noise), ...ends);
}

function noiseText(noise, round, party) {
  return measured(noise, run.doubt(round, party));
}

function bar(share, most) {
  const fill = element("i", {});
  fill.style.inlineSize = `${(100 * Math.max(0, share)) / most}%`;
  const track = element("span", { class: "track", "aria-hidden": "true" }, fill);
  track.style.setProperty("--one", `${100 / most}%`);
  return element("span", { class: "bar" }, track, element("span", {}, times(share)));
}

// All that was ever said about the picked party, and when.
function showDetail() {
  const { party } = state;
  $("detail").hidden = party === null;
  if (party === null) return;
  const said = new Map();
  run.rounds.forEach((round, place) => {
    // One line per kind of reason, as the numbers change from round to round.
    const reason = round.reasons.has(party) ? withoutNumbers(round.reasons.get(party)) : null;
    const text = round.rejected.has(party) ? `rejected: ${round.rejected.get(party)}` : reason;
    if (text) said.set(text, [...(said.get(text) ?? []), place]);
  });
  const round = run.rounds[state.place];
  const now = round.rejected.has(party)
    ? "rejected"
    : `weight ${brief(round.weights[party] ?? NaN)}, noise ${noiseText(run.noise(round, party), round, party)}`;
  const close = element("button", { type: "button", onclick: () => pickParty(party) }, "Let go");
  $("detail").replaceChildren(
    element("h2", {}, run.names[party]),
    element(
      "p",
      {},
      `In round ${round.number}: ${now}${round.reasons.has(party) ? `; ${round.reasons.get(party)}` : ""}. `,
      close,
    ),
    said.size
      ? element(
          "ul",
          {},
          ...[...said].map(([text, places]) => element("li", {}, `Rounds ${spans(run, places)}: ${text}`)),
        )
      : element("p", {}, "Nothing was ever said against it."),
  );
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
    {
      title: "Party",
      left: true,
      sort: (one) => run.names[one.party],
      cell: (one) => partyButton(one.party),
    },
    {
      title: "Times",
      down: true,
      sort: (one) => one.places.length,
      cell: (one) => String(one.places.length),
    },
    { title: "Rounds", left: true, cell: (one) => element("span", { class: "why" }, spans(run, one.places)) },
    {
      title: "Why",
      left: true,
      sort: (one) => one.reason,
      cell: (one) => element("span", { class: "why" }, one.reason),
    },
  ];
  const rows = [...found.values()].sort((a, b) => b.places.length - a.places.length);
  table($("rejected").querySelector(".scroll"), columns, rows, remembered("rejected"), {
    perPage: 50,
    caption: "Rejected updates",
  });
}

function showNotes() {
  const rows = run.rounds.filter((round) => round.note);
  $("notes").hidden = !rows.length;
  const columns = [
    byRound,
    { title: "Note", left: true, cell: (round) => element("span", { class: "why" }, round.note) },
  ];
  table($("notes").querySelector(".scroll"), columns, rows, remembered("notes"), {
    perPage: 50,
    caption: "Notes",
  });
}

function remembered(name) {
  if (!state.tables.has(name)) state.tables.set(name, {});
  return state.tables.get(name);
}

function duration(seconds) {
  if (Number.isNaN(seconds)) return "–";
  if (seconds < 1) return `${brief(seconds * 1000)} ms`;
  return seconds < 120 ? `${brief(seconds)} s` : `${brief(seconds / 60)} min`;
}
