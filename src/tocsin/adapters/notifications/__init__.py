"""Channels that carry notifications out of Tocsin.

webhook            a signed request to a URL
mail               an e-mail through a mail server
apprise_channel    a message through Apprise: Slack, Teams, PagerDuty and others
apprise_process    the process that runs Apprise: a program without Tocsin
factory            the channel of settings
"""
