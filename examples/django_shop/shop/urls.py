"""The addresses of the shop."""

from django.urls import path

from . import views

urlpatterns = [path("orders", views.order), path("orders/<int:number>", views.show)]
