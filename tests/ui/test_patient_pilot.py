"""The pilot of all tests of the application."""

from __future__ import annotations

import asyncio

import pytest
from textual.app import App
from textual.pilot import Pilot

from tests.ui.patient_pilot import PatientPilot


@pytest.mark.parametrize("ends_before", [True, False])
def test_nobody_waits_for_an_application_that_ends(ends_before: bool) -> None:
    async def main() -> None:
        app = App[None]()
        async with app.run_test() as pilot:
            assert isinstance(pilot, PatientPilot)
            if ends_before:
                app.exit()
            else:
                asyncio.get_running_loop().call_later(0.05, app.exit)
            await app._on_exit_app()  # nothing that is posted after it is dealt with
            async with asyncio.timeout(20):
                await pilot.pause()

    asyncio.run(main())


def test_textual_s_own_would_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should this fail one day, then a pilot of our own is not needed any more."""
    monkeypatch.setattr("textual.pilot.Pilot", Pilot)

    async def main() -> None:
        app = App[None]()
        async with app.run_test() as pilot:
            await app._on_exit_app()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await pilot.pause()

    asyncio.run(main())
