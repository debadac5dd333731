"""Which party a Flower reply belongs to: who was asked, who answered, and under which id."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from flwr.app import Message

from consilience.integrations.flower_replies import claimed_id

log = logging.getLogger("flwr")


class Nodes:
    """The nodes of a run, and their parties.

    A party is a node id, or with a key the id that the node gave when it was first heard. Such an
    id is a claim: a node cannot take another's, nor change its own to leave its past behind, and if
    two new nodes claim the same, neither gets it. They are then known by their node ids, so that
    nobody is silenced by another's claim.
    """

    def __init__(self, party_key: str | None = None, names: dict[str, str] | None = None) -> None:
        self.party_key = party_key
        # Node -> party; with a key, of the nodes that were heard. The caller keeps it, too.
        self.names = {} if names is None else names
        self._asked: list[Message] = []

    def ask(self, messages: list[Message]) -> None:
        """Remember what is about to be sent. (Messages get their ids later.)"""
        self._asked = messages

    def answers(self, replies: Iterable[Message]) -> tuple[dict[str, Message], dict[str, str]]:
        """Return the replies by party, and the parties without a valid one, with reasons.

        A reply belongs to the node that was sent the message it answers: for a dead node the
        SuperLink answers in its own name. If nothing was sent, as in a strategy that is called by
        hand, every reply counts, and those of one node are numbered.
        """
        by_hand, by_node = not self._asked, self._by_node(replies)
        if by_hand and any(len(found) > 1 for found in by_node.values()):
            return _told_apart(by_node)
        reasons = {node: _unheard(node, found) for node, found in by_node.items()}
        good = {node: found[0] for node, found in by_node.items() if reasons[node] is None}
        self._learn(good)
        rejected = {self.name(node): why for node, why in reasons.items() if why is not None}
        return {self.name(node): message for node, message in good.items()}, rejected

    def name(self, node: int) -> str:
        """Return the party id of a node."""
        if self.party_key is None:
            return str(node)
        return self.names.get(str(node), f"node-{node}")

    def _by_node(self, replies: Iterable[Message]) -> dict[int, list[Message]]:
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in self._asked}
        self._asked = []
        by_node: dict[int, list[Message]] = {node: [] for node in asked.values()}
        for reply in replies:
            question, source = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            if not asked or question in asked:
                by_node.setdefault(asked.get(question, source), []).append(reply)
            else:
                log.warning("a reply of node %d answers no message of this round", source)
        return by_node

    def _learn(self, messages: dict[int, Message]) -> None:
        if self.party_key is None:
            return
        claims = {
            str(node): claimed_id(message, self.party_key)
            for node, message in messages.items()
            if not message.has_error()
        }
        new = (c for n, c in claims.items() if n not in self.names)
        taken = Counter([*self.names.values(), *new])
        for node, claim in claims.items():
            if node not in self.names:
                alone = claim is not None and taken[claim] == 1
                free = alone and not str(claim).startswith("node-")
                self.names[node] = str(claim) if free else f"node-{node}"
            if claim != self.names[node]:
                log.warning("node %s claims to be %s: it is %s", node, claim, self.names[node])


def _told_apart(
    by_node: dict[int, list[Message]],
) -> tuple[dict[str, Message], dict[str, str]]:
    """Return each reply as that of a party of its own, and those that hold nothing."""
    named = {
        str(node) if number == 1 else f"{node}-{number}": message
        for node, found in by_node.items()
        for number, message in enumerate(found, 1)
    }
    empty = {party: "its reply holds nothing" for party, m in named.items() if _is_empty(m)}
    return {party: m for party, m in named.items() if party not in empty}, empty


def _is_empty(message: Message) -> bool:
    return not (message.has_error() or message.has_content())


def _unheard(node: int, found: list[Message]) -> str | None:
    """Return why the answers to a node's message do not count; None if they do."""
    if not found:
        return "no reply in the time allowed"
    if len(found) > 1:
        return f"{len(found)} replies to one message: which counts is unknown"
    if _is_empty(found[0]):
        return "its reply holds nothing"
    if found[0].has_error():  # whoever sent it
        return None
    if found[0].metadata.src_node_id != node:
        return f"node {found[0].metadata.src_node_id} replied in its place"
    return None
