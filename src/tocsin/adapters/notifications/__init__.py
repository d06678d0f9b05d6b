"""Channels that carry notifications out of Tocsin.

webhook            a signed request to a URL
mail               an e-mail through a mail server
apprise_channel    a message through Apprise: Slack, Teams, PagerDuty and others
apprise_process    the process that runs Apprise: a program without Tocsin
own_text           the texts by the templates of the settings
certificates       the authorities that a channel trusts
factory            the channel of settings
"""
