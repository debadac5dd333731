"use strict";
// Whom to trust: what the last rounds up to the picked one amount to, party by party and in words.

const WINDOW = 10; // rounds a finding rests on
const REMARKABLE = 3; // times the typical noise, as in the package's own reasons
const LITTLE = 0.25; // of an equal share
const CAUSES = ["rejected", "together", "noisy", "little"]; // the gravest first

// One judgement per party that was there, the most suspicious first.
function judge(run, place) {
  const window = run.rounds.slice(Math.max(0, place + 1 - WINDOW), place + 1);
  const typical = new Map(window.map((round) => [round, median([...round.noise])]));
  const found = [];
  for (let party = 0; party < run.size; party++) {
    const there = window.filter((r) => r.rejected.has(party) || !Number.isNaN(r.weights[party] ?? NaN));
    if (there.length) found.push(judgeOne(run, party, there, typical));
  }
  const cents = ({ share }) => Math.round(100 * share);
  return found.sort((a, b) => !a.cause - !b.cause || cents(a) - cents(b) || a.party - b.party);
}

function judgeOne(run, party, there, typical) {
  const refused = there.filter((round) => round.rejected.has(party));
  const heard = there.filter((round) => !round.rejected.has(party));
  const grouped = heard.filter((round) => run.together(round, party).length > 1);
  const judgement = {
    party,
    share: mean(there.map((round) => run.share(round, party))),
    noise: median(heard.map((round) => run.noise(round, party) / typical.get(round))),
    rounds: there.length,
    rejected: refused.length,
    refusal: refused.at(-1)?.rejected.get(party) ?? null,
    group: 2 * grouped.length > heard.length ? run.together(grouped.at(-1), party) : [],
    reason: heard.at(-1)?.reasons.get(party) ?? null,
  };
  return { ...judgement, cause: causeOf(judgement) };
}

function causeOf({ rounds, rejected, group, noise, share }) {
  if (2 * rejected >= rounds) return "rejected";
  if (group.length) return "together";
  if (noise >= REMARKABLE) return "noisy";
  return share < LITTLE ? "little" : null;
}

function why(run, judgement) {
  const said = [];
  const { rejected, rounds, refusal, group, noise, cause } = judgement;
  if (rejected) said.push(`rejected in ${rejected} of ${rounds}: ${refusal}`);
  if (group.length) {
    const others = group.filter((party) => party !== judgement.party);
    said.push(`moves with ${list(others.map((party) => run.names[party]))}`);
  }
  if (noise >= REMARKABLE) said.push(`${times(noise)} the typical noise`);
  if (cause === "little") said.push("heard little");
  return said.join("; ");
}

// The groups of judgements that one sentence is about: [cause, judgements].
function clusters(judgements) {
  const found = new Map();
  for (const judgement of judgements.filter((one) => one.cause)) {
    const { cause, group, refusal } = judgement;
    const kind = { together: group.join(), rejected: refusal }[cause] ?? "";
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
  const [is, was] = members.length > 1 ? ["are", "were"] : ["is", "was"];
  const share = times(mean(members.map((one) => one.share)));
  const each = members.length > 1 ? " each" : "";
  if (cause === "rejected") {
    const [one] = members;
    const often = one.rejected === one.rounds ? "every time" : `${one.rejected} times`;
    return [
      ...names,
      ` ${was} rejected ${often} in the last ${plural(one.rounds, "round")}: ${one.refusal}.`,
    ];
  }
  if (cause === "together") {
    if (members.length === 1) return [...names, ` moves with others that are not there: heard ${share}.`];
    return [...names, ` move together: one voice, heard ${share} an equal share each.`];
  }
  if (cause === "noisy") {
    const noise = members.map((one) => one.noise);
    const [low, high] = [times(Math.min(...noise)), times(Math.max(...noise))];
    const range = low === high ? low : `${low} to ${high}`;
    return [...names, ` ${is} noisy, ${range} the typical, and heard ${share} an equal share${each}.`];
  }
  return [...names, ` ${is} heard little, ${share} an equal share${each}.`];
}

function headline(run, place, judgements) {
  const round = run.rounds[place];
  if (!round) return "No round yet.";
  const standing = judgements.filter((one) => one.cause).length;
  const among = `of ${plural(judgements.length, "party", "parties")}`;
  if (standing) return `${standing} ${among} stand${standing === 1 ? "s" : ""} out.`;
  return judgements.length ? "No party stands out." : "Nobody was heard.";
}

// What remains to be said once those who stand out are named.
function remainder(run, place, judgements) {
  const round = run.rounds[place];
  if (!round) return "The page shows rounds as they are written.";
  if (!round.members.length)
    return `Round ${round.number} came to nothing${round.note ? `: ${round.note}` : "."}`;
  const rest = judgements.filter((one) => !one.cause);
  const shares = rest.map((one) => one.share);
  const alike = Math.max(...shares) - Math.min(...shares) < 1e-3;
  if (rest.length === judgements.length && alike && !round.correlation)
    return `${round.method} hears everybody alike: it does not tell whom to trust.`;
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

function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}
