"""An order and its receipt are stored together, or neither of them is."""

from django.core.mail import EmailMessage
from django.db import IntegrityError, connection, transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

import pgmta

from .models import Order


@csrf_exempt  # the example has no forms
@require_POST
def order(request: HttpRequest) -> JsonResponse:
    """Take an order."""
    buyer, item = request.POST.get("buyer"), request.POST.get("item")
    if not buyer or not item:
        return JsonResponse({"error": "give buyer and item"}, status=422)
    receipt = EmailMessage("Your receipt", f"Thank you for the {item}.\n", to=[buyer])
    receipt.pgmta = {"tenant": "shop", "metadata": {"item": item}}
    try:
        with transaction.atomic():
            receipt.send()
            order = Order.objects.create(
                buyer=buyer,
                item=item,
                voucher=request.POST.get("voucher"),
                receipt=receipt.pgmta_id,
            )
    except IntegrityError:  # another order has the voucher: no receipt is sent
        return JsonResponse({"error": "this voucher was used"}, status=409)
    except (pgmta.SubmissionError, ValueError) as error:
        return JsonResponse({"error": str(error)}, status=422)
    return JsonResponse({"order": order.pk}, status=201)


def show(request: HttpRequest, number: int) -> JsonResponse:
    """Return an order, and where its receipt is."""
    order = get_object_or_404(Order, pk=number)
    with connection.cursor() as cursor:
        cursor.execute("SELECT recipient, state FROM pgmta.status(%s)", [[order.receipt]])
        states = dict(cursor.fetchall())
    return JsonResponse({"item": order.item, "receipt": states})
