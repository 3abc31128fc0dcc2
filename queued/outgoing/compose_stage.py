"""The stage that composes the content of mail that came as parts, or for a template."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, field

import psycopg

from pgmta.compose.composed_message import (
    Composition,
    one_click_fields,
    parts_for,
    read_composition,
)
from pgmta.compose.mime import MessageIdentity, compose_head, tail_end
from pgmta.compose.parts import Parts
from pgmta.compose.template import Template, TemplateSource, compile_template
from pgmta.compose.token import KeyRings, LinkNumbers, UnknownKey
from pgmta.errors import DeliveryError, Stage, StoreUnavailable, TemplateError
from pgmta.logs import get
from pgmta.mail.metadata import SCOPE_KEY, values_of
from pgmta.model import Message, Reply
from pgmta.postgres import faults
from pgmta.states import Event
from queued.config import QueuedConfig
from queued.delivery.transport.result import Result, internal
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import Prepare, Prepared, QueueStage, StageContext, Waiting

_EMPTY_LINE = b"\r\n\r\n"
_SCOPE = f'"{SCOPE_KEY}"'  # is in the metadata of mail from which recipients unsubscribe
_TAIL_OCTETS = 200  # more than the end of a tail has
_MAX_SOURCE_OCTETS = 64 << 20  # of all templates in memory, about
_MAX_CHARACTERS = 1 << 20  # of texts that are encoded at once; larger ones take the loop too long

log = get("worker")

type Found = dict[int | None, Template | str | None]
"""Templates by id, or why they can't be used."""


class TemplateCache:
    """Compiled templates by their id: those that were used last, up to 64 MB of their sources.

    Versions never change, so nothing here grows old.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[Template | str, int]] = OrderedDict()
        self._size = 0

    def find(self, template_id: int) -> Template | str | None:
        """Return a template, or why it can't be used; None if it has to be read."""
        kept = self._kept.get(template_id)
        if kept is None:
            return None
        self._kept.move_to_end(template_id)
        return kept[0]

    async def add(self, template_id: int, source: TemplateSource | None) -> Template | str:
        """Keep a template that was read, None if it is not in the database.

        Return what `find` does from then on, while it is kept.
        """
        compiled: Template | str = "there is no such template"
        size = 100
        if source:
            size += sum(map(len, (source.subject, source.body or "", source.html or "")))
            try:
                if size > _MAX_CHARACTERS // 16:
                    compiled = await asyncio.to_thread(compile_template, source)
                else:
                    compiled = compile_template(source)
            except TemplateError as error:  # the row was not written by a command of ours
                compiled = str(error)
        # because two readers may have read it at one time
        _, before = self._kept.pop(template_id, ("", 0))
        self._kept[template_id] = compiled, size
        self._size += size - before
        while self._size > _MAX_SOURCE_OCTETS and len(self._kept) > 1:
            _, (_, gone) = self._kept.popitem(last=False)
            self._size -= gone
        return compiled


@dataclass(slots=True, eq=False)
class _ForTemplate(Waiting):
    composition: Composition


class ComposeStage(QueueStage[_ForTemplate]):
    """Composes content from the parameters of its message; other mail passes.

    Mail from which its recipients unsubscribe has a link for each row. Other mail that came as
    octets gets the fields of one click in front of its header.

    The same message gets the same octets at each attempt and in each process: the Message-ID and
    boundaries are those of the message, and Date is the time of the row. Mail whose template is
    not known yet waits until it is read. Large parameters are read when the content is sent, and
    large texts are composed then.

    Mail that can't be composed goes on hold, whatever its `on_failed` says: its row or its template
    was changed by hand. Mail waits if the key of its token or the URL of its link is not
    configured, because another process may have it.
    """

    most = 1000

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._templates = TemplateCache()
        self._last: tuple[Message, Outgoing] | None = None  # shared by groups of one message
        self._keys = KeyRings({})

    def configured(self, config: QueuedConfig) -> Prepare:
        """Use the keys of tokens from now on; return the step."""
        self._keys = KeyRings.of(config.tokens, config.tokens.unsubscribe_url or "")
        return self.prepare

    def prepare(self, outgoing: Outgoing) -> Prepared:
        """Return the message with its content; take it, if its template has to be read."""
        message = outgoing.message
        if (metadata := outgoing.items[0].metadata) is not None and _SCOPE in metadata:
            return self._by_row(outgoing, metadata)
        if message.composition is None:
            return outgoing
        if self._last and self._last[0] is message:
            return _with_content(outgoing, self._last[1])
        return self._prepared(outgoing)

    def _by_row(self, outgoing: Outgoing, metadata: str) -> Prepared:
        """Return the mail of each row, with its link if it has one."""
        items = outgoing.items
        # programs may have this word in other places
        if outgoing.message.composition is None and SCOPE_KEY not in values_of(metadata):
            return outgoing
        each = [self._prepared(outgoing._replace(items=[item])) for item in items]
        self._last = None
        return each[0] if len(items) == 1 else [made for made in each if made]

    def _prepared(self, outgoing: Outgoing) -> Outgoing | None:
        message = outgoing.message
        if message.composition == "":
            return self._composed_later(outgoing)
        try:
            if message.composition is None:
                link = self._keys.unsubscription(_numbers(outgoing))
                fields = "".join(f"{n}: {v}\r\n" for n, v in one_click_fields(link).items())
                return outgoing._replace(trace=outgoing.trace + fields.encode())
            composition = read_composition(message.composition)
            template_id = composition.template_id
            template = None if template_id is None else self._templates.find(template_id)
            if template_id is not None and template is None:
                self._take(_ForTemplate(outgoing, composition))
                return None
            return self._composed(outgoing, composition, template)
        except ValueError as error:
            self._refuse(outgoing, str(error))
        except UnknownKey as error:
            self._wait_for_key(outgoing, error)
        return None

    def _composed(
        self, outgoing: Outgoing, composition: Composition, template: Template | str | None
    ) -> Outgoing:
        """Return the message with its content. Raises ValueError."""
        message, stored = outgoing.message, outgoing.content
        found = template if isinstance(template, Template) else None
        parts = _parts(outgoing, composition, template, self._keys)
        if len(parts.body or "") + len(parts.html or "") > _MAX_CHARACTERS:
            return self._composed_later(outgoing._replace(template=found))
        head, end = _encoded(outgoing, parts)
        utf8 = not head[: head.find(_EMPTY_LINE)].isascii()
        if isinstance(stored, bytes):
            check_tail(stored, end)
            content: bytes | AsyncIterable[bytes] = head + stored
            size = len(head) + len(stored)
        else:
            content = HeadedContent(head, stored, end)
            size = len(head) + max(0, message.size - len((message.composition or "").encode()))
        made = outgoing._replace(content=content, size=size, header_utf8=utf8, template=found)
        self._last = message, made
        return made

    def _composed_later(self, outgoing: Outgoing) -> Outgoing:
        content = ComposedContent(self, outgoing, outgoing.message.id, outgoing.items[0].id)
        return outgoing._replace(content=content)

    def _refuse(self, outgoing: Outgoing, problem: str) -> None:
        log.warning("on hold: can't be composed", message=outgoing.message.id,
                    rows=len(outgoing.items), reason=problem)  # fmt: skip
        result = Result(Event.FAIL, Reply(0, _words(problem)), hold=True)
        self.context.dispatcher.end(outgoing.items, result, outgoing.started)

    def _wait_for_key(self, outgoing: Outgoing, error: UnknownKey) -> None:
        log.warning("waits for a key", message=outgoing.message.id, reason=str(error))
        result = Result(Event.DEFER, Reply(0, f"4.3.0 {error}"))
        self.context.dispatcher.end(outgoing.items, result, outgoing.started)

    # -- templates that have to be read --

    async def _do(self, batch: list[_ForTemplate]) -> None:
        ids = (each.composition.template_id for each in batch)
        found = await self._read({each for each in ids if each is not None})
        for each in batch:
            self._go_on(each.outgoing, each.composition, found)

    def _go_on(self, outgoing: Outgoing, composition: Composition, found: Found | Result) -> None:
        if isinstance(found, Result):
            self.context.dispatcher.end(outgoing.items, found, outgoing.started)
            return
        try:
            made = self._composed(outgoing, composition, found.get(composition.template_id))
        except ValueError as error:
            self._refuse(outgoing, str(error))
        except UnknownKey as error:
            self._wait_for_key(outgoing, error)
        except Exception as error:  # the other rows of the batch have to go on
            log.error("can't compose", message=outgoing.message.id, exc_info=error)
            result = Result.from_error(internal(error), "")
            self.context.dispatcher.end(outgoing.items, result, outgoing.started)
        else:
            self.context.go_on(self, made)

    async def _read(self, ids: set[int]) -> Found | Result:
        """Read templates; return all of them, or the result of mail that waits for them.

        The cache may have lost some of them already.
        """
        found: Found = {each: self._templates.find(each) for each in ids}
        unknown = [each for each in ids if found[each] is None]
        if not unknown:
            return found
        try:
            read = await self.context.means.contents.templates(unknown)
        except (StoreUnavailable, psycopg.Error) as error:
            problem = f"4.3.0 a template can't be read: {faults.one_line(error)}"
            return Result(Event.DEFER, Reply(0, problem))
        except Exception as error:  # for example of a row that was made by hand
            log.error("can't read templates", templates=unknown, exc_info=error)
            return Result.from_error(internal(error), "")
        for each in unknown:
            found[each] = await self._templates.add(each, read.get(each))
        return found

    async def read_large(self, outgoing: Outgoing) -> HeadedContent:
        """Return the content, with parameters that the claim left out. Raises DeliveryError."""
        try:
            text = await self.context.means.contents.composition(outgoing.message.id)
            if text is None:
                raise ValueError("its parameters are not in the database")
            composition = await asyncio.to_thread(read_composition, text)
            template_id, template = composition.template_id, None
            if template_id is not None:
                templates = await self._read({template_id})
                if isinstance(templates, Result):
                    raise DeliveryError(templates.reply.text, Stage.CONTENT)
                template = templates[template_id]
            parts = await asyncio.to_thread(_parts, outgoing, composition, template, self._keys)
            head, end = await asyncio.to_thread(_encoded, outgoing, parts)
        except StoreUnavailable as error:
            raise DeliveryError(f"parameters can't be read: {error}", Stage.CONTENT) from None
        except UnknownKey as error:
            raise DeliveryError(f"4.3.0 {error}", Stage.CONTENT) from None
        except ValueError as error:
            raise _broken(error) from None
        stored = outgoing.content
        return HeadedContent(head, _one(stored) if isinstance(stored, bytes) else stored, end)


@dataclass(frozen=True, slots=True)
class HeadedContent:
    """Iterates over composed content: its head, and the stored octets as they are read.

    The stored octets have to end with `end`.
    """

    head: bytes
    stored: AsyncIterable[bytes]
    end: bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts. Raises DeliveryError, as the stored content does."""
        yield self.head
        last = b""
        try:
            async for part in self.stored:
                if part:
                    last = (last + part)[-_TAIL_OCTETS:]
                    yield part
            check_tail(last, self.end)
        except ValueError as error:
            raise _broken(error) from None
        except DeliveryError as error:
            error.hold = error.permanent
            raise


@dataclass(frozen=True, slots=True)
class ComposedContent:
    """Iterates over content that is composed when it is read, because it is large."""

    stage: ComposeStage = field(compare=False, repr=False)
    outgoing: Outgoing = field(compare=False, repr=False)
    message_id: int
    row_id: int

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts. Raises DeliveryError if it can't be composed, or read."""
        async for part in await self.stage.read_large(self.outgoing):
            yield part


def check_tail(tail: bytes, end: bytes) -> None:
    """Raise ValueError unless the stored octets, or the last of them, are a tail with this end."""
    if not tail and end:
        raise ValueError("its attachments are not in the database")
    if tail and not (end and tail.endswith(end)):
        raise ValueError("the stored octets are not its attachments")


async def _one(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _broken(error: ValueError) -> DeliveryError:
    return DeliveryError(_words(str(error)), Stage.CONTENT, permanent=True, hold=True)


def _parts(
    outgoing: Outgoing, composition: Composition, template: Template | str | None, keys: KeyRings
) -> Parts:
    """Return the parts of the message. Raises ValueError, UnknownKey."""
    if isinstance(template, str):
        raise ValueError(f"template {composition.template_id}: {template}")
    return parts_for(composition.params, template, keys, row=_numbers(outgoing))


def _encoded(outgoing: Outgoing, parts: Parts) -> tuple[bytes, bytes]:
    """Return what goes before the stored octets, and how these have to end. Raises ValueError."""
    identity = MessageIdentity(outgoing.message.message_id_header or "", outgoing.items[0].ts)
    return compose_head(parts, identity), tail_end(parts, identity)


def _numbers(outgoing: Outgoing) -> LinkNumbers:
    """Return what a link says of the first row."""
    item = outgoing.items[0]
    return LinkNumbers.of_row(item.message_id, item.id, item.ts)


def _with_content(outgoing: Outgoing, made: Outgoing) -> Outgoing:
    return outgoing._replace(
        content=made.content,
        size=made.size,
        header_utf8=made.header_utf8,
        template=made.template,
    )


def _words(problem: str) -> str:
    return f"5.6.0 it can't be composed: {problem}"
