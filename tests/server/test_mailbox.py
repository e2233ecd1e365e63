"""The hand-over of events between threads: nothing is lost, and a step wakes the loop once."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from duologue.engine.events import TokenEvent
from duologue.server.mailbox import Mailbox, Postman


def event(number: int, *, last: bool = False) -> TokenEvent:
    return TokenEvent(f"{number} ", (number,), "stop" if last else None, 1, 0, number)


def test_events_of_many_requests_arrive_in_order() -> None:
    count, boxes_count = 2000, 8

    async def read(mailbox: Mailbox) -> list[int]:
        numbers: list[int] = []
        while True:
            for _, item, _ in await mailbox.take():
                numbers.append(item.token_ids[0])
                if item.finish_reason:
                    return numbers

    async def main() -> list[list[int]]:
        loop = asyncio.get_running_loop()
        postman = Postman(loop)
        boxes = [Mailbox(loop) for _ in range(boxes_count)]

        def produce() -> None:
            for number in range(count):
                for box in boxes:
                    postman.post(box, 0, event(number, last=number == count - 1))

        thread = threading.Thread(target=produce)
        thread.start()
        results = await asyncio.wait_for(asyncio.gather(*(read(box) for box in boxes)), 60)
        thread.join()
        return results

    assert asyncio.run(main()) == [list(range(count))] * boxes_count


def test_a_late_reader_gets_everything_as_one_piece() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        postman, mailbox = Postman(loop), Mailbox(loop)
        thread = threading.Thread(
            target=lambda: [postman.post(mailbox, 0, event(number)) for number in range(50)]
        )
        thread.start()
        thread.join()  # the loop stands still meanwhile
        return len(await mailbox.take())

    assert asyncio.run(main()) == 50


def test_a_step_wakes_the_loop_once() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        postman, mailbox = Postman(loop), Mailbox(loop)
        calls = 0
        schedule = loop.call_soon_threadsafe

        def counted(*args: object) -> object:
            nonlocal calls
            calls += 1
            return schedule(*args)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        for number in range(32):
            postman.post(mailbox, 0, event(number))
        await mailbox.take()
        return calls

    assert asyncio.run(main()) == 1


def test_a_closed_mailbox_ends_the_wait() -> None:
    async def main() -> tuple[list[object], list[object]]:
        loop = asyncio.get_running_loop()
        mailbox = Mailbox(loop)
        loop.call_later(0.01, mailbox.close)
        waited = await asyncio.wait_for(mailbox.take(), 10)
        mailbox.put((0, event(1), time.perf_counter()))
        return list(waited), list(await mailbox.take())

    assert asyncio.run(main()) == ([], [])


def test_posting_after_the_loop_is_gone_is_harmless() -> None:
    async def main() -> tuple[Postman, Mailbox]:
        loop = asyncio.get_running_loop()
        return Postman(loop), Mailbox(loop)

    postman, mailbox = asyncio.run(main())
    postman.post(mailbox, 0, event(1))


@pytest.mark.parametrize("streams", [32])
def test_a_token_costs_little(streams: int) -> None:
    """The hand-over alone, without the socket. Ten times the usual cost, so that a busy machine passes."""
    steps = 100

    async def main() -> float:
        loop = asyncio.get_running_loop()
        postman = Postman(loop)
        boxes = [Mailbox(loop) for _ in range(streams)]
        started_s = time.thread_time()
        for number in range(steps):
            for box in boxes:
                postman.post(box, 0, event(number))
            await asyncio.gather(*(box.take() for box in boxes))
        return (time.thread_time() - started_s) / (steps * streams)

    assert asyncio.run(main()) < 200e-6
