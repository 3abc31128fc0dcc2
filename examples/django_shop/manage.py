"""A Django shop, which mails a receipt for each order.

    export PGHOST=localhost PGUSER=shop PGDATABASE=shop
    python examples/django_shop/manage.py migrate
    python examples/django_shop/manage.py runserver 8000
    curl -d buyer=ann@example.com -d item=lamp -d voucher=SPRING-1 localhost:8000/orders
    curl localhost:8000/orders/1

pgmta is in that database, and the login has the role pgmta_submit (docs/programs/django.md).
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
