#!/usr/bin/env python3
"""The golden file of the chat templates is what jinja2 renders today."""
import sys

import chat_template_golden

sys.exit(chat_template_golden.main())
