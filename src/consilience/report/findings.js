"use strict";
// Whom to trust: what the record says about each party in the rounds up to the picked one, in words.
// A party stands out if the record names it: in the picked round, or in half of the last ones.

const WINDOW = 10; // rounds a finding rests on
const CAUSES = ["rejected", "together", "noisy"]; // the gravest first
const NUMBER = /(\d[\d.e+]*)(?=×)/; // in a reason

// One judgement per party that was there: those who stand out first, then by weight, the least first.
function judge(run, place) {
  const window = run.rounds.slice(Math.max(0, place + 1 - WINDOW), place + 1);
  const typical = new Map(window.map((round) => [round, median([...round.noise])]));
  const found = [];
  for (let party = 0; party < run.size; party++) {
    const there = window.filter((r) => r.rejected.has(party) || !Number.isNaN(r.weights[party] ?? NaN));
    if (there.length) found.push(judgeOne(run, party, there, typical, window.at(-1)));
  }
  const cents = ({ share }) => Math.round(100 * share);
  return found.sort((a, b) => !a.cause - !b.cause || cents(a) - cents(b) || a.party - b.party);
}

function judgeOne(run, party, there, typical, now) {
  const refused = there.filter((round) => round.rejected.has(party));
  const heard = there.filter((round) => !round.rejected.has(party));
  const named = there.filter((round) => round.rejected.has(party) || round.reasons.has(party));
  const last = named.at(-1);
  const standing = last && (last === now || 2 * named.length >= there.length);
  return {
    party,
    share: mean(there.map((round) => run.share(round, party))),
    noise: median(heard.map((round) => run.noise(round, party) / typical.get(round))),
    doubt: median(heard.map((round) => run.doubt(round, party))),
    rounds: there.length,
    rejected: refused.length,
    refusal: refused.at(-1)?.rejected.get(party) ?? null,
    named: named.length - refused.length,
    reason: heard.findLast((round) => round.reasons.has(party))?.reasons.get(party) ?? null,
    group: last ? run.together(last, party) : [],
    cause: standing ? causeOf(run, last, party) : null,
  };
}

function causeOf(run, round, party) {
  if (round.rejected.has(party)) return "rejected";
  return run.together(round, party).length ? "together" : "noisy";
}

function why(judgement) {
  const { rejected, rounds, refusal, named, reason } = judgement;
  const often = named < rounds ? `in ${named} of ${plural(rounds, "round")}: ` : "";
  return [
    ...(rejected ? [`rejected in ${rejected} of ${rounds}: ${refusal}`] : []),
    ...(reason ? [often + reason] : []),
  ].join("; ");
}

// Joins reasons that differ only in their numbers: "noise 3.1 to 9.2× the typical".
function ranged(reasons) {
  const parts = reasons.map((reason) => reason.split(NUMBER));
  return parts[0]
    .map((text, k) => {
      const values = parts.map((part) => part[k]);
      const [low, high] = [Math.min(...values), Math.max(...values)];
      return k % 2 && low < high ? `${low} to ${high}` : text;
    })
    .join("");
}

function withoutNumbers(reason) {
  return reason
    .split(NUMBER)
    .filter((_, k) => k % 2 === 0)
    .join("…");
}

// Judgements grouped by sentence: [cause, judgements].
function clusters(judgements) {
  const found = new Map();
  for (const judgement of judgements.filter((one) => one.cause)) {
    const { cause, group, refusal, reason } = judgement;
    const kind = { together: group.join(), rejected: refusal }[cause] ?? withoutNumbers(reason);
    const key = `${CAUSES.indexOf(cause)} ${kind}`;
    found.set(key, [...(found.get(key) ?? []), judgement]);
  }
  return [...found.entries()]
    .sort(([a], [b]) => a.localeCompare(b))
    .map(([, members]) => ({ cause: members[0].cause, members: members.sort((a, b) => a.party - b.party) }));
}

// Sentences of words and of {party}, which the page makes into buttons.
function sentence(run, { cause, members }) {
  const names = listed(members.map((one) => one.party));
  const several = members.length > 1;
  const share = `heard ${times(mean(members.map((one) => one.share)))} an equal share${several ? " each" : ""}`;
  if (cause === "rejected") {
    const [one] = members;
    const often = one.rejected === one.rounds ? "every time" : `${one.rejected} times`;
    return [
      ...names,
      ` ${several ? "were" : "was"} rejected ${often} in the last ${plural(one.rounds, "round")}: ${one.refusal}.`,
    ];
  }
  if (cause === "together") {
    if (!several) return [...names, ` moves with others that are not there: ${share}.`];
    return [...names, ` move together: one voice, ${share}.`];
  }
  const reasons = ranged(members.map((one) => one.reason));
  return [...names, ` stand${several ? "" : "s"} out: ${reasons}; ${share}.`];
}

function headline(run, place, judgements) {
  const round = run.rounds[place];
  if (!round) return "No round yet.";
  const standing = judgements.filter((one) => one.cause).length;
  const among = `of ${plural(judgements.length, "party", "parties")}`;
  if (standing) return `${standing} ${among} stand${standing === 1 ? "s" : ""} out.`;
  if (!judgements.length) return "Nobody was heard.";
  return round.caveats.length ? "No party stands out, but this is no all-clear." : "No party stands out.";
}

// What to say after those who stand out are named.
function remainder(run, place, judgements) {
  const round = run.rounds[place];
  if (!round) return "The page shows rounds as they are written.";
  if (!round.members.length)
    return `Round ${round.number} came to nothing${round.note ? `: ${round.note}` : "."}`;
  const heard = judgements.filter((one) => one.rejected < one.rounds).map((one) => one.share);
  const alike = heard.length > 1 && Math.max(...heard) - Math.min(...heard) < 1e-3;
  if (alike && !round.correlation)
    return `${round.method} hears everybody alike, whoever stands out.`;
  const rest = judgements.filter((one) => !one.cause);
  const shares = rest.map((one) => one.share);
  const who = rest.length === judgements.length ? `All ${rest.length}` : `The other ${rest.length}`;
  if (!rest.length) return "Nobody else took part.";
  return (
    `${who} are heard ${times(Math.min(...shares))} to ${times(Math.max(...shares))} an equal share; ` +
    `all in all the consensus counts as ${brief(round.effective)} equal voices.`
  );
}

function listed(parties, most = 6) {
  const shown = parties.slice(0, parties.length > most + 1 ? most : most + 1);
  const words = shown.flatMap((party, k) => {
    const last = k > 0 && k + 1 === parties.length;
    return [k === 0 ? "" : last ? " and " : ", ", { party }];
  });
  const more = parties.length - shown.length;
  return more ? [...words, ` and ${more} more`] : words;
}

function list(names, most = 5) {
  const more = names.length - most;
  return names.slice(0, most).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

function brief(value) {
  if (Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1);
  return size >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(size < 1 ? 2 : 3)));
}

function times(value) {
  if (Number.isNaN(value)) return "–";
  return `${value < 10 ? value.toFixed(2) : brief(value)}×`;
}

// A number and the ends of its interval, with as many digits as the interval allows; or null.
function interval(value, doubt) {
  if (!(value > 0) || Number.isNaN(doubt)) return null;
  const [low, high] = [value * Math.exp(-doubt), value * Math.exp(doubt)];
  const worth = Math.min(6, 1 + Math.ceil(Math.log10(high / (high - low))));
  return [value, low, high].map((number) => digits(number, worth));
}

function measured(value, doubt) {
  const [said, low, high] = interval(value, doubt) ?? [brief(value)];
  return low ? `${said} (${low}–${high})` : said;
}

function digits(value, count) {
  if (value >= 1e5 || value < 1e-3) return value.toExponential(count - 1);
  return value.toFixed(Math.max(0, count - 1 - Math.floor(Math.log10(value))));
}

function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}
