"""Inquiries whose command has died go."""

from __future__ import annotations

from pgmta_features.inquiries.store import InquiryTable
from queued.upkeep.duty import Duty

DUTY = Duty("inquiries", 600.0, lambda process: InquiryTable(process.link, process.name).expire)
