"""What an attacker would write into the texts that pages show. Whatever of it a browser runs, sets ``window.__xss`` or opens an alert."""

IMAGE = "<img src=x onerror=\"window.__xss='image';alert(1)\">"
SCRIPT = "</script><script>window.__xss='script';alert(2)</script>"
ATTRIBUTE = "\" autofocus onfocus=\"window.__xss='focus'\" x='"
TEMPLATE = "{{7*7}}{% now 'Y' %}"
#: All of them in one text.
ALL = f"{IMAGE}{SCRIPT}{ATTRIBUTE}{TEMPLATE}"
#: A pool's name: its column holds 100 characters.
POOL = "<img src=x onerror=\"window.__xss='pool'\"></script>'{{7*7}}"
