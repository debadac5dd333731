"use strict";
// The run: the record's lines, with parties by number, in the order of rounds.

class Run {
  constructor(texts) {
    this.texts = texts; // to which reasons refer
    this.names = []; // party number -> id
    this.rounds = [];
    this.numbers = new Map(); // party id -> number
    this.before = null; // the parties of the last line that named any
  }

  get size() {
    return this.names.length;
  }

  number(name) {
    if (!this.numbers.has(name)) {
      this.numbers.set(name, this.names.length);
      this.names.push(name);
    }
    return this.numbers.get(name);
  }

  add(line) {
    if (line.parties && line.parties !== "same") this.before = line.parties;
    const members = line.parties ? this.before.map((name) => this.number(name)) : [];
    const byParty = (pairs) =>
      new Map(
        Object.entries(pairs ?? {}).map(([name, text]) => [
          this.number(name),
          typeof text === "number" ? this.texts[text] : text,
        ]),
      );
    const rejected = byParty(line.rejected);
    const round = {
      number: line.round,
      time: new Date(line.time * 1000),
      method: line.method ?? null,
      members,
      rejected,
      reasons: byParty(line.reasons),
      caveats: line.caveats ?? [],
      center: line.center_weight ?? 0,
      weights: this.spread(members, line.weights),
      noise: this.spread(members, line.noise),
      doubt: this.spread(members, line.noise_spread),
      group: this.spread(members, line.group),
      correlation: line.correlation ?? null,
      effective: line.effective_parties ?? NaN,
      seconds: line.seconds ?? {},
      accuracy: line.accuracy ?? NaN,
      metrics: line.metrics ?? {},
      note: line.note ?? null,
    };
    const last = this.rounds.at(-1);
    if (!last || last.number < round.number) this.rounds.push(round);
    else this.insert(round);
  }

  // If a round was written twice, the last line counts.
  insert(round) {
    const place = this.rounds.findIndex((other) => other.number >= round.number);
    const same = this.rounds[place].number === round.number;
    this.rounds.splice(place, same ? 1 : 0, round);
  }

  // Numbers of the members as an array over all parties; NaN for those that were absent.
  spread(members, values) {
    const all = new Float64Array(this.names.length).fill(NaN);
    members.forEach((party, k) => (all[party] = values?.[k] ?? NaN));
    return all;
  }

  // A party's weight as a multiple of an equal share: 0 if rejected, NaN if absent.
  share(round, party) {
    if (round.rejected.has(party)) return 0;
    return (round.weights[party] ?? NaN) * round.members.length;
  }

  noise(round, party) {
    return round.noise[party] ?? NaN;
  }

  // Half the width of the noise's interval, in logarithms; NaN if there is none.
  doubt(round, party) {
    return round.doubt[party] ?? NaN;
  }

  together(round, party) {
    const group = round.group[party];
    return Number.isNaN(group ?? NaN) ? [] : round.members.filter((p) => round.group[p] === group);
  }

  // The last place up to this one with correlations, or -1.
  correlated(place) {
    while (place >= 0 && !this.rounds[place].correlation) place--;
    return place;
  }
}

// Correlations by pair of members: hundredths, the upper triangle by rows, -128 for unknown.
function correlations(round) {
  const bytes = atob(round.correlation);
  const size = round.members.length;
  return (a, b) => {
    if (a === b) return 1;
    const [row, column] = a < b ? [a, b] : [b, a];
    const code = bytes.charCodeAt(row * size - (row * (row + 1)) / 2 + column - row - 1);
    return code === 128 ? NaN : (code > 127 ? code - 256 : code) / 100;
  };
}

function quantile(sorted, share) {
  if (!sorted.length) return NaN;
  const place = share * (sorted.length - 1);
  const low = Math.floor(place);
  return sorted[low] + (place - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

function median(values) {
  return quantile(
    values.filter((value) => !Number.isNaN(value)).sort((a, b) => a - b),
    0.5,
  );
}

function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN;
}

// Places in the run as round numbers: "3–7, 12".
function spans(run, places) {
  const parts = [];
  for (let k = 0; k < places.length;) {
    let end = k;
    while (places[end + 1] === places[end] + 1) end++;
    const [from, to] = [run.rounds[places[k]].number, run.rounds[places[end]].number];
    parts.push(from === to ? `${from}` : `${from}–${to}`);
    k = end + 1;
  }
  return parts.length > 8 ? `${parts.slice(0, 8).join(", ")} and more` : parts.join(", ");
}
